"""The records of a comparison: JSON, CSV, and a page of tables whose figures scripts/check_figures.py checks."""
import csv
import decimal
import json
import math
import statistics

COLUMNS = ("operation", "shape", "implementation", "us", "us_low", "us_high", "samples", "gb_per_s", "tflops",
           "flop_per_byte", "limit", "us_at_limit", "limit_share", "over_eager", "error_of_bound", "extra_mb", "sm_mhz",
           "watts", "card", "date")
NAMES = {"gelu_erf": "GELU (erf)", "gelu_tanh": "GELU (tanh)", "silu": "SiLU (Swish)", "layer_norm": "LayerNorm",
         "rms_norm": "RMSNorm", "layer_norm_gelu_erf": "LayerNorm + GELU", "bias_gelu_erf": "bias + GELU",
         "swiglu": "SwiGLU", "softmax": "softmax", "gemm": "GEMM", "gemm_gelu_erf": "GEMM + GELU",
         "attention_prefill": "attention, prefill", "attention_decode": "attention, one query",
         "route": "routing of experts"}


def rounded(value):
    """Numbers of six significant digits, so that all three records have the same."""
    if isinstance(value, dict):
        return {name: rounded(x) for name, x in value.items()}
    if isinstance(value, list):
        return [rounded(x) for x in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def fixed(value, decimals, form="f"):
    """With so many decimals, rounded as scripts/check_figures.py rounds."""
    unit = decimal.Decimal(1).scaleb(-decimals)
    return format(decimal.Decimal(f"{value:.12g}").quantize(unit, decimal.ROUND_HALF_EVEN), form)


def write(out, record):
    record = rounded(record)
    for row in record["results"]:
        row.update({"card": record["card"], "date": record["date"]})
    with open(f"{out}.json", "w", encoding="utf-8") as file:
        json.dump(record, file, indent=1, allow_nan=False, default=str)
        file.write("\n")
    with open(f"{out}.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        for row in record["results"]:
            table.writerow(row)
    with open(f"{out}.md", "w", encoding="utf-8") as file:
        file.write("\n".join(page(record, f"{out.name}.csv", f"{out.name}.json")) + "\n")


def by_shape(rows):
    """{(operation, shape): {implementation: row}}"""
    found = {}
    for row in rows:
        found.setdefault((row["operation"], row["shape"]), {})[row["implementation"]] = row
    return found


def ratio(of, over):
    return over["us"] / of["us"] if of and over else None


def page(record, csv_name, json_name):
    limits = record["limits"]
    yield "# Beside PyTorch, torch.compile, Triton, cuBLAS and cuDNN"
    yield ""
    yield ("For those who doubt a ratio: the operations of minfer that PyTorch has too, and their peers, on one card, in one run, on the same inputs. "
           f"`{record['command']}` made this page, [{csv_name}]({csv_name}) and [{json_name}]({json_name}).")
    yield ""
    yield (f"{record['card']}, driver {record.get('driver_version', 'none')}, CUDA {record['cuda']}, PyTorch {record['torch']}, "
           f"Triton {record['triton']}, {record['minfer']}, {record['date']}. Limits of this run: "
           f"{limits['read'] / 1e12:.3f} TB/s of reads, {limits['copy'] / 1e12:.3f} TB/s of copies, {limits['hgemm'] / 1e12:.0f} "
           "TFLOP/s of F16 products by cuBLAS. All times are medians of launches in a CUDA graph over rotating operands, in turns; "
           "each result was compared with float64, within a bound that follows from F16.")
    if record["card"] != "CPU":
        yield ""
        yield "![Time of each peer over minfer's](../pictures/compare.svg)"
        yield ""
        yield "![Every kernel under the limits of memory and arithmetic](../pictures/roofline.svg)"
    for title, kinds in (("Rows and elements", ("gelu_erf", "gelu_tanh", "silu", "layer_norm", "rms_norm",
                                                "layer_norm_gelu_erf", "bias_gelu_erf", "swiglu", "softmax")),
                         ("GEMM", ("gemm",)), ("GEMM with GELU", ("gemm_gelu_erf",)),
                         ("Attention of prompts", ("attention_prefill",)), ("Attention of one query", ("attention_decode",)),
                         ("Routing of experts", ("route",))):
        rows = [row for row in record["results"] if row["operation"] in kinds]
        if rows:
            yield from ("", f"## {title}", "")
            yield from operation_table(rows, csv_name)
    if record["models"]:
        yield from ("", "## Whole models", "", "Llama-2-7B's shape in F16, random weights; tokens/s, lowest to highest:", "")
        yield from model_table(record["models"], json_name)


def operation_table(rows, csv_name):
    """Microseconds of each implementation, minfer's share of the limit, and its time over the best peer's."""
    names = list(dict.fromkeys(row["implementation"] for row in rows if row["implementation"] != "minfer")) + ["minfer"]
    lines, queries = [], []
    for (operation, shape), found in by_shape(rows).items():
        cells = []
        for name in names:
            cells.append(fixed(found[name]["us"], 1) if name in found else "")
            if name in found:
                queries.append(f"operation={operation}/shape={shape}/implementation={name}:us")
        ours = found.get("minfer")
        cells.append(f"{fixed(100 * ours['limit_share'], 0)} % {ours['limit']}" if ours else "")
        if ours:
            queries.append(f"operation={operation}/shape={shape}/implementation=minfer:limit_share %")
        if ours:
            for peer in names[:-1]:
                cells.append(fixed(ratio(ours, found[peer]), 2) if peer in found else "")
                if peer in found:
                    queries.append(f"[operation={operation}/shape={shape}/implementation={peer}:us] / "
                                   f"[operation={operation}/shape={shape}/implementation=minfer:us]")
        lines.append(f"| {NAMES.get(operation, operation)}, {shape} | " + " | ".join(cells) + " |")
    yield f"<!-- figures {csv_name}: " + "\n  ".join(queries) + " -->"
    heads = [f"{name}, us" for name in names] + ["minfer's share of the limit"]
    heads += [f"{name} over minfer" for name in names[:-1]]
    yield "| | " + " | ".join(heads) + " |"
    yield "|---|" + "---|" * len(heads)
    yield from lines


def model_table(rows, json_name):
    tests = dict.fromkeys(row["test"] for row in rows)
    kinds = list(dict.fromkeys(row["implementation"] for row in rows))
    found = {(row["test"], row["implementation"]): row for row in rows}
    queries, lines = [], []
    for test in tests:
        cells = []
        for kind in kinds:
            row = found.get((test, kind))
            cells.append("{} ({} to {})".format(*(fixed(row[x], 0, ",f") for x in ("tokens_per_s", "low", "high"))) if row else "")
            if row:
                queries.append(f"test={test}/implementation={kind}:{{tokens_per_s,low,high}}")
        lines.append(f"| {test} | " + " | ".join(cells) + " |")
    yield f"<!-- figures {json_name}: " + "\n  ".join(queries) + " -->"
    yield "| | " + " | ".join(kinds) + " |"
    yield "|---|" + "---|" * len(kinds)
    yield from lines


def geometric_mean(values):
    return math.exp(statistics.fmean(map(math.log, values))) if values else None


def summary(record):
    """For each operation: minfer's time over each peer's, lowest, geometric mean and highest over the shapes."""
    lines = []
    shapes = by_shape(record["results"])
    for operation in dict.fromkeys(key[0] for key in shapes):
        ratios = {}
        for (name, _), found in shapes.items():
            for peer, row in found.items():
                if name == operation and peer != "minfer" and "minfer" in found:
                    ratios.setdefault(peer, []).append(ratio(found["minfer"], row))
        shares = [found["minfer"]["limit_share"] for (name, _), found in shapes.items()
                  if name == operation and "minfer" in found]
        for peer, values in ratios.items():
            lines.append(f"{operation}: {peer} over minfer {min(values):.3f} to {max(values):.3f}, "
                         f"geometric mean {geometric_mean(values):.3f}; share of the limit from {min(shares):.2f}")
    called = [row["of_cublas"] for row in record.get("gemm_called", []) if row.get("epilogue") == "store"]
    if called:
        lines.append(f"GEMM, one at a time: cuBLAS over minfer {min(called):.3f} to {max(called):.3f}, geometric mean "
                     f"{geometric_mean(called):.3f}")
    lines += [f"failed: {x['operation']} {x['shape']} {x['implementation']}: {x['error']}" for x in record["failures"]]
    return "\n".join(lines)
