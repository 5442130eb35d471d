#!/usr/bin/env python3
"""Draws docs/pictures from the records in docs/benchmarks (matplotlib).

    scripts/plot_benchmarks.py [--records DIR] [--out DIR] [--png] [NAME ...]     all pictures without NAME

The background is transparent and text and colours are of middle brightness, so that a picture is readable on light and
dark pages. A picture whose record is not there, or has not what it shows, is left as it is, which is said.
"""
import argparse
import csv
import json
import pathlib
import statistics
import sys

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "minfer"  # the same file each time
matplotlib.rcParams["svg.fonttype"] = "none"
matplotlib.rcParams["font.size"] = 9
import matplotlib.pyplot as plt  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
GREY, BLUE, GREEN, ORANGE, RED, PURPLE = "#808890", "#2f81f7", "#2da44e", "#d18616", "#e5534b", "#a371f7"
RECORDS = ROOT / "docs/benchmarks"


class Missing(Exception):
    """A record that is not there, or lacks what is to be drawn; the text says which."""


def record(name):
    path = RECORDS / name
    if not path.is_file():
        raise Missing(f"there is no {name}")
    return path.read_text(encoding="utf-8")


def csv_rows(name, section=""):
    """Rows of a CSV as dicts; with `section`, of the part whose comment lines have that text."""
    lines, inside, in_comment, header = [], not section, False, None
    for line in record(name).splitlines():
        if line.startswith("#"):
            if section:
                inside = section in line or (in_comment and inside)
            in_comment = True
            continue
        in_comment = False
        if header is None:
            header = line
            lines.append(line)
        elif inside:
            lines.append(line)
    return list(csv.DictReader(lines))


def json_lines(name):
    return [json.loads(line) for line in record(name).splitlines()]


def style(axes):
    """In grey, without the frame's upper and right side."""
    axes.tick_params(colors=GREY, which="both")
    for text in (axes.xaxis.label, axes.yaxis.label, axes.title):
        text.set_color(GREY)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(GREY)


def legend(axes, **options):
    axes.legend(frameon=False, labelcolor=GREY, **options)


def limit_line(axes, y, label, at, below=False):
    """A dashed line across, with its name at x."""
    axes.axhline(y, color=GREY, linewidth=1, linestyle=(0, (4, 3)))
    axes.annotate(label, (at, y), textcoords="offset points", xytext=(0, -3 if below else 3), color=GREY,
                  va="top" if below else "bottom", fontsize=8.5)


def lengths(axes, values):
    """An axis of tokens by powers of two."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(values, [f"{v // 1024}K" if v >= 2048 else str(v) for v in values])
    axes.minorticks_off()
    axes.set_xlabel("tokens")


# ---- whole models ----

def decode():
    """Tokens/s of minfer and its peers for each type of weight, with minfer's read limit."""
    rows = csv_rows("decode_peers.csv")
    colours = {"minfer": BLUE, "torch.compile": ORANGE, "llama.cpp": GREY}
    groups = list(dict.fromkeys(row["weights"] for row in rows))
    figure, axes = plt.subplots(figsize=(7.2, 3.2))
    height = 0.25
    for i, group in enumerate(groups):
        of_group = [row for row in rows if row["weights"] == group]
        for j, row in enumerate(of_group):
            y, value = i + (j - 1) * (height + 0.02), float(row["tokens_per_s"])
            colour = next(c for name, c in colours.items() if row["program"].startswith(name))
            axes.barh(y, value, height, color=colour)
            label, end = f"{row['program']}: {value:.0f}", value
            if row["read_share"]:
                share = float(row["read_share"])
                end = value / share
                axes.plot([end, end], [y - height / 2, y + height / 2], color=GREY, linewidth=2)
                label += f", {share:.0%} of the read limit"
            inside = value > 700
            axes.text(value - 8 if inside else end + 12, y, label, va="center", fontsize=8.5,
                      ha="right" if inside else "left", color="white" if inside else GREY)
    axes.set_yticks(range(len(groups)), groups)
    axes.invert_yaxis()
    axes.set_xlim(0, 1320)
    axes.set_xlabel("tokens/s, Llama-2-7B's shape, one sequence, one H200; grey mark: the read limit")
    return figure


def prefill():
    """Tokens/s over the length of a prompt, with the F16 products of the model at cuBLAS's best rate."""
    sizes = (512, 2048, 4096)
    int8 = csv_rows("cuda_int8_activations.csv", "with rests of 2 s")
    in_turns = [r for text in ("bands in turns (own)", "other lengths on an H200", "--turns 512:6 4096:2")
                for r in csv_rows("cuda_prefill.csv", text)]
    figure, axes = plt.subplots(figsize=(7.2, 3.4))

    def line(rows, label, colour, marker="o"):
        found = {}
        for row in rows:
            found.setdefault(int(row["tokens"]), []).append(float(row["tokens_per_s"]) / 1e3)
        axes.plot(sizes, [statistics.mean(found[n]) for n in sizes], marker=marker, color=colour, label=label)

    line([r for r in int8 if r["weights"] == "int4 g64"], "INT4, int8 activations", PURPLE, "^")
    line([r for r in int8 if r["weights"] == "int8 row"], "INT8, int8 activations", GREEN, "s")
    line([r for r in in_turns if r["gemm"] == "own"], "F16", BLUE)
    line([r for r in in_turns if r["gemm"] == "torch.compile"], "torch.compile, F16, in turns with minfer's", ORANGE, "v")
    limits = json.loads(record("cuda_f16.json"))["limits"]["cuda"]["hgemm_flops_per_s"]
    per_token = 2 * 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008)  # products of all layers
    limit_line(axes, max(limits.values()) / per_token / 1e3, "products of F16 at cuBLAS's rate", 2150, below=True)
    lengths(axes, sizes)
    axes.set_ylim(0, 85)
    axes.set_ylabel("thousand tokens/s")
    axes.set_xlabel("tokens of the prompt; Llama-2-7B's shape, H200")
    legend(axes, loc="lower center", ncols=2)
    return figure


def cpu():
    """Decode and prefill on two cores over llama.cpp, and what is left beside a busy process."""
    names = {"cpu.json": "F16", "cpu_int8_float.json": "INT8", "cpu_int8_int8.json": "INT8,\nint8 act.",
             "cpu_int4_float.json": "INT4", "cpu_int4_int8.json": "INT4,\nint8 act."}
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.2), gridspec_kw={"width_ratios": (3, 2)})
    rounds = {label: json.loads(record(name))["rounds"] for name, label in names.items()}
    median = lambda label, of: statistics.median(of(one) for one in rounds[label])
    for i, (test, colour, name) in enumerate((("tg32", BLUE, "decode"), ("pp512", GREEN, "prompt of 512 tokens"))):
        values = [median(label, lambda r: r["minfer"][test]["avg_ts"] / r["llama"][test]["avg_ts"]) for label in rounds]
        at = [j + (i - 0.5) * 0.38 for j in range(len(values))]
        bars = left.bar(at, values, 0.36, color=colour, label=name)
        left.bar_label(bars, fmt="%.1f", color=GREY, fontsize=8, padding=2)
    left.axhline(1, color=GREY, linewidth=1, linestyle=(0, (4, 3)))
    left.set_xticks(range(len(rounds)), rounds)
    left.set_ylabel("speed over llama.cpp's (dashed)")
    left.set_ylim(0, 4.4)
    legend(left, loc="lower center", ncols=2, bbox_to_anchor=(0.5, 1))
    kept = {"minfer": ("minfer", "minfer_busy"), "llama.cpp": ("llama", "llama_busy")}
    for i, (name, (alone, busy)) in enumerate(kept.items()):
        values = [100 * median(label, lambda r: r[busy]["tg32"]["avg_ts"] / r[alone]["tg32"]["avg_ts"])
                  for label in ("F16", "INT8", "INT4")]
        bars = right.bar([j + (i - 0.5) * 0.38 for j in range(3)], values, 0.36, color=(BLUE, ORANGE)[i], label=name)
        right.bar_label(bars, fmt="%.0f", color=GREY, fontsize=8, padding=2)
    limit_line(right, 75, "a fair share", -0.4)
    right.set_xticks(range(3), ("F16", "INT8", "INT4"))
    right.set_ylabel("decode beside a busy process,\n% of its speed alone")
    right.set_ylim(0, 100)
    legend(right, loc="lower center", ncols=2, bbox_to_anchor=(0.5, 1))
    return figure


# ---- kernels ----

def gemm():
    """cuBLAS's time over minfer's over the rows of x, one GEMM at a time: median and range of five runs."""
    runs = ("first", "second", "third", "fourth", "fifth")
    rows = [r for r in csv_rows("cuda_gemm_called.csv") if r["epilogue"] == "store" and r["parts"] == "1"]
    figure, axes = plt.subplots(figsize=(7.2, 3.4))
    shapes = {("12288", "4096"): BLUE, ("4096", "4096"): GREEN, ("22016", "4096"): ORANGE, ("4096", "11008"): PURPLE}
    for i, ((n, k), colour) in enumerate(shapes.items()):
        found = {int(r["m"]): r for r in rows if (r["n"], r["k"]) == (n, k)}
        sizes = sorted(found)
        at = [m * 1.04 ** (i - 1.5) for m in sizes]  # side by side
        median = [float(found[m]["median"]) for m in sizes]
        low = [y - min(float(found[m][r]) for r in runs) for m, y in zip(sizes, median)]
        high = [max(float(found[m][r]) for r in runs) - y for m, y in zip(sizes, median)]
        axes.errorbar(at, median, (low, high), marker="o", markersize=4, linewidth=1, elinewidth=1, color=colour,
                      label=f"N = {n}, K = {k}")
    limit_line(axes, 1, "as fast as cuBLAS", 850, below=True)
    axes.set_xscale("log", base=2)
    axes.set_xticks([16, 64, 128, 256, 512, 777, 2048, 4096], ["16", "64", "128", "256", "512", "777", "2048", "4096"])
    axes.minorticks_off()
    axes.set_ylim(0.85, 1.3)
    axes.set_xlabel("M, rows of the input; F16, one GEMM at a time, H200")
    axes.set_ylabel("cuBLAS's time over minfer's")
    legend(axes, ncols=2, loc="upper center")
    return figure


def attention():
    """Causal attention over the length of the prompt, and beside it what it allocates."""
    rows = json_lines("cuda_attention_prefill.jsonl")
    limits = json.loads(record("cuda_kernels.json"))["limits"]["cuda"]["hgemm_flops_per_s"]
    try:
        memory = [r for r in csv_rows("compare.csv") if r["operation"] == "attention_prefill" and r["extra_mb"]]
    except Missing:
        memory = []
    figure, panels = plt.subplots(1, 1 + bool(memory), figsize=(7.2, 3.4), squeeze=False)
    left = panels[0][0]
    sizes = (512, 2048, 4096, 8192, 16384, 32768)

    def line(label, colour, marker, **wanted):
        found = {r["tokens"]: r["tflops"] for r in rows if all(r.get(k) == v for k, v in wanted.items())}
        at = [n for n in sizes if n in found]
        left.plot(at, [found[n] for n in at], marker=marker, color=colour, label=label)

    whole = {"pos": 0, "heads": 32, "kv_heads": 32, "head_dim": 128}
    line("minfer", BLUE, "o", cache="f16", **whole)
    line("minfer, int8 cache", GREEN, "s", cache="u8", **whole)
    line("cuDNN", ORANGE, "v", what="sdpa_cudnn")
    line("FlashAttention-2", GREY, "^", what="sdpa_flash")
    limit_line(left, max(limits.values()) / 1e12, "cuBLAS's best product", 512)
    lengths(left, sizes)
    left.set_ylim(0, 800)
    left.set_ylabel("TFLOP/s")
    left.set_xlabel("tokens; causal, 32 heads of 128, F16, H200")
    legend(left, loc="lower right")
    if memory:
        right = panels[0][1]
        for name, colour, marker in (("eager", RED, "D"), ("flash", GREY, "^"), ("cudnn", ORANGE, "v"), ("minfer", BLUE, "o")):
            found = {int(r["shape"].split()[0]): float(r["extra_mb"]) for r in memory if r["implementation"] == name}
            at = [n for n in sizes if n in found]
            right.plot(at, [max(found[n], 0.01) for n in at], marker=marker, color=colour,
                       label={"eager": "plain PyTorch", "cudnn": "cuDNN", "flash": "FlashAttention-2"}.get(name, name))
        lengths(right, sizes)
        right.set_yscale("log")
        right.set_xlabel(f"tokens; {memory[0]['card'].split()[1]}; nothing is drawn as 0.01")
        right.set_ylabel("allocated beside the result, MB")
        legend(right)
    return figure


def attention_decode():
    """One query against a cache over its length, as a share of the read limit."""
    rows = csv_rows("cuda_attention_decode.csv")
    figure, axes = plt.subplots(figsize=(7.2, 3))
    for cache, heads, colour, label in (("f16", "32", BLUE, "F16 cache"), ("u8", "32", GREEN, "int8 cache"),
                                        ("f16", "8", ORANGE, "F16 cache, 8 key/value heads"),
                                        ("u8", "8", PURPLE, "int8 cache, 8 key/value heads")):
        found = {int(r["context"]): 100 * float(r["of_read"]) for r in rows
                 if (r["cache"], r["kv_heads"]) == (cache, heads) and int(r["context"]) >= 128}
        axes.plot(sorted(found), [found[n] for n in sorted(found)], marker="o", color=colour, label=label)
    limit_line(axes, 100, "the read limit", 128)
    lengths(axes, [128, 512, 2048, 8192, 32768])
    axes.set_xlabel("positions in the cache; one query, 32 heads of 128, H200")
    axes.set_ylabel("share of the read limit, %")
    axes.set_ylim(0, 112)
    legend(axes, loc="center left", bbox_to_anchor=(0, 0.68))
    return figure


def memory_kernels():
    """Kernels over rows and elements as a share of the copy limit of the same run."""
    results = json.loads(record("cuda_kernels.json"))["results"]
    names = {"gelu_erf": "GELU (erf)", "gelu_tanh": "GELU (tanh)", "bias_gelu_erf": "bias + GELU", "silu": "SiLU (Swish)",
             "swiglu": "SwiGLU", "softmax": "softmax", "rms_norm": "RMSNorm", "add_rms_norm": "sum + RMSNorm",
             "layer_norm": "LayerNorm", "layer_norm_gelu": "LayerNorm + GELU", "rope": "RoPE"}
    figure, axes = plt.subplots(figsize=(7.2, 4))
    for i, (kernel, label) in enumerate(names.items()):
        shares = [100 * r["limit_share"] for r in results if r["kernel"] == kernel and not r["shape"].endswith("32000 f32")]
        for j, share in enumerate(shares):
            bar = axes.barh(i + (j - 0.5) * 0.4 if len(shares) > 1 else i, share, 0.38, color=(BLUE, GREEN)[j],
                            label=(("4096 columns", "8192 or 11008 columns")[j]) if i == 0 else None)
            axes.bar_label(bar, fmt="%.0f", color="white", fontsize=8, padding=-18)
    axes.axvline(100, color=GREY, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_yticks(range(len(names)), names.values())
    axes.invert_yaxis()
    axes.set_xlim(0, 112)
    axes.set_xlabel("share of the copy limit (dashed), %; 8192 rows, H200")
    axes.legend(frameon=False, labelcolor=GREY, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    return figure


def roofline():
    """Every kernel of `bench kernels`: FLOP/s over FLOP/byte, under the limits of memory and arithmetic."""
    whole = json.loads(record("compare.json"))
    if "kernels" not in whole:
        raise Missing("compare.json has no kernels")
    results = [r for r in whole["kernels"]["results"] if r["flops_per_byte"]]
    card = whole["kernels"]["limits"]["cuda"]
    read, copy, hgemm = card["read_bytes_per_s"], card["copy_bytes_per_s"], max(card["hgemm_flops_per_s"].values())
    kinds = (("attention_prefill", "attention, prompt", RED, "D"), ("attention_decode", "attention, one query", ORANGE, "v"),
             ("gemm", "GEMM", BLUE, "o"), ("codes", "int8 GEMM", PURPLE, "s"), ("gemv", "GEMV", GREEN, "^"),
             ("", "rows, elements, (de)quantization", GREY, "."))
    figure, axes = plt.subplots(figsize=(7.2, 4.2))
    ends = (0.1, 8000)
    for bytes_per_s, label, dashes in ((read, "reads", (0, ())), (copy, "copies", (0, (4, 3)))):
        axes.plot([ends[0], hgemm / bytes_per_s], [ends[0] * bytes_per_s / 1e12, hgemm / 1e12], color=GREY, linewidth=1,
                  linestyle=dashes, label=f"{label}: {bytes_per_s / 1e12:.2f} TB/s")
    axes.plot([hgemm / read, ends[1]], [hgemm / 1e12] * 2, color=GREY, linewidth=1)
    axes.annotate(f"F16 products by cuBLAS: {hgemm / 1e12:.0f} TFLOP/s", (0.12, hgemm / 1e12), color=GREY, fontsize=8.5,
                  va="center")
    left = list(results)
    for start, label, colour, marker in kinds:
        some = [r for r in left if r["kernel"].startswith(start)]
        left = [r for r in left if not r["kernel"].startswith(start)]
        rate = lambda r: (r["tflops"] if r["tflops"] else r["gb_per_s"] * r["flops_per_byte"] / 1e3)
        axes.plot([r["flops_per_byte"] for r in some], [rate(r) for r in some], marker, color=colour, markersize=5,
                  alpha=0.8, label=label, markeredgewidth=0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*ends)
    axes.set_ylim(2e-4, 5000)
    axes.set_xlabel(f"FLOP/byte; {card['card']}, {whole['date']}; a function (exp, erf) is one operation")
    axes.set_ylabel("TFLOP/s (int8: TOP/s)")
    legend(axes, loc="lower right")
    return figure


def compare():
    """Time of each peer over minfer's for every operation of scripts/compare_torch.py, geometric mean over its shapes."""
    rows = csv_rows("compare.csv")
    names = {"gelu_erf": "GELU (erf)", "gelu_tanh": "GELU (tanh)", "silu": "SiLU (Swish)", "rms_norm": "RMSNorm",
             "layer_norm": "LayerNorm", "softmax": "softmax", "layer_norm_gelu_erf": "LayerNorm + GELU",
             "bias_gelu_erf": "bias + GELU", "swiglu": "SwiGLU", "gemm": "GEMM", "gemm_gelu_erf": "GEMM + GELU",
             "attention_prefill": "attention, prompt", "attention_decode": "attention, one query", "route": "expert routing"}
    peers = {"eager": (ORANGE, "PyTorch"), "compile": (GREEN, "torch.compile"), "triton": (PURPLE, "Triton"),
             "cublas": (RED, "cuBLAS, cuDNN"), "cudnn": (RED, "cuBLAS, cuDNN"), "flash": (GREY, "FlashAttention-2")}
    us = {(r["operation"], r["shape"], r["implementation"]): float(r["us"]) for r in rows}
    shown = [name for name in names if any(key[0] == name and key[2] == "minfer" for key in us)]
    if not shown:
        raise Missing("compare.csv has no minfer")
    figure, axes = plt.subplots(figsize=(7.2, 0.5 * len(shown) + 0.9))
    labelled = set()
    for i, name in enumerate(shown):
        found = {}
        for (operation, shape, peer), time in us.items():
            if operation == name and peer in peers and (name, shape, "minfer") in us:
                found.setdefault(peer, []).append(time / us[name, shape, "minfer"])
        for j, (peer, ratios) in enumerate(found.items()):
            colour, label = peers[peer]
            y, height = i + (j - (len(found) - 1) / 2) * 0.22, 0.2
            mean = statistics.geometric_mean(ratios)
            bar = axes.barh(y, min(mean, 6), height, color=colour, label=None if label in labelled else label)
            axes.bar_label(bar, [f"{mean:.2f}"], color=GREY, fontsize=7.5, padding=2)
            labelled.add(label)
    axes.axvline(1, color=GREY, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_yticks(range(len(shown)), [names[name] for name in shown])
    axes.invert_yaxis()
    axes.set_xlim(0, 6.6)
    axes.set_xlabel("time over minfer's (dashed), geometric mean over the shapes; bars end at 6")
    axes.legend(frameon=False, labelcolor=GREY, loc="lower left", bbox_to_anchor=(-0.2, 1), ncols=5, columnspacing=1.2)
    return figure


# ---- quantization, several cards ----

def quantization():
    """Perplexity and KL divergence over the bits of a weight."""
    table = next(t for t in json.loads(record("quantization.json"))["tables"] if t["model"] == "demo")
    figure, panels = plt.subplots(1, 2, figsize=(7.2, 3.4))
    kinds = (("rtn", ORANGE, "v"), ("rtn16", GREY, "<"), ("mse", BLUE, "o"), ("asymmetric mse", PURPLE, "s"), ("gptq", GREEN, "^"))
    rows = [r for r in table["rows"] if r["activations"] == "float"]

    def draw(axes, value):
        for kind, colour, marker in kinds:
            some = sorted((r["bits"], value(r)) for r in rows
                          if r["name"].startswith("int4") and r["name"].split(" ", 2)[2] == kind)
            axes.plot(*zip(*some), marker=marker, color=colour, markersize=5, linewidth=1, label=f"int4 {kind}")
        some = [r for r in rows if r["name"].startswith("int8")]
        axes.plot([r["bits"] for r in some], [value(r) for r in some], "D", color=BLUE, markersize=5, label="int8")
        some = [r for r in rows if r["name"].startswith("llama.cpp") and "embedding" in r["name"]]
        axes.plot([r["bits"] for r in some], [value(r) for r in some], "x", color=RED, markersize=6, label="llama.cpp")
        for r in some:
            name = r["name"].removeprefix("llama.cpp ").split(",")[0]
            axes.annotate(name, (r["bits"], value(r)), textcoords="offset points", xytext=(5, 4), color=RED, fontsize=8)
        axes.set_xlabel("bits per weight of the linear layers")
        axes.set_xlim(3.9, 9.2)

    draw(panels[0], lambda r: r["perplexity"])
    limit_line(panels[0], table["reference"]["perplexity"], "as trained", 5.6, below=True)
    panels[0].set_ylabel("perplexity of WikiText-2, models/demo")
    panels[0].set_ylim(16.1, 19.3)
    draw(panels[1], lambda r: r["kl_divergence"])
    panels[1].set_yscale("log")
    panels[1].set_ylabel("KL divergence from the model as trained")
    legend(panels[0], loc="upper right", fontsize=8)
    return figure


def all_reduce():
    """Time and bus bandwidth of an all-reduce between two cards over its size, with the fitted alpha-beta model."""
    rows = [r for r in csv_rows("cuda_all_reduce.csv") if r["type"] == "F16" and r["adds_to_residual"] == "0"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.4))
    for name, colour in {"one-shot": BLUE, "two-shot": GREEN, "ring": ORANGE, "nccl": GREY}.items():
        some = [r for r in rows if r["algorithm"] == name]
        sizes = [float(r["bytes"]) for r in some]
        label = "NCCL" if name == "nccl" else name
        left.plot(sizes, [float(r["us"]) for r in some], "o", color=colour, markersize=3, label=label)
        right.plot(sizes, [float(r["bus_GBps"]) for r in some], "o", color=colour, markersize=3)
        if name != "nccl":  # it changes its algorithm with the size
            left.plot(sizes, [float(r["predicted_us"]) for r in some], color=colour, linewidth=1)
            factor = [float(r["bus_GBps"]) * float(r["us"]) for r in some]
            right.plot(sizes, [f / float(r["predicted_us"]) for f, r in zip(factor, some)], color=colour, linewidth=1)
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks([2**i for i in (10, 14, 18, 22, 26)], ["1 KB", "16 KB", "256 KB", "4 MB", "64 MB"])
    left.set_yscale("log")
    left.set_ylabel("us")
    right.set_ylabel("bus bandwidth, GB/s")
    left.set_xlabel("size of the sum; F16, two H100; dots: measured")
    right.set_xlabel("size of the sum; lines: the alpha-beta model")
    legend(left)
    return figure


PICTURES = (decode, prefill, cpu, gemm, attention, attention_decode, memory_kernels, roofline, compare, quantization,
            all_reduce)


def main():
    global RECORDS
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--records", type=pathlib.Path, default=RECORDS)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs/pictures")
    parser.add_argument("--png", action="store_true", help="PNG files, too")
    parser.add_argument("names", nargs="*", help=", ".join(picture.__name__ for picture in PICTURES))
    args = parser.parse_args()
    RECORDS = args.records
    args.out.mkdir(exist_ok=True)
    for picture in PICTURES:
        if args.names and picture.__name__ not in args.names:
            continue
        try:
            figure = picture()
        except Missing as reason:
            print(f"{picture.__name__}: not drawn: {reason}", file=sys.stderr)
            continue
        for axes in figure.axes:
            style(axes)
        figure.tight_layout()
        figure.savefig(args.out / f"{picture.__name__}.svg", transparent=True, metadata={"Date": None})
        if args.png:
            figure.savefig(args.out / f"{picture.__name__}.png", transparent=True, dpi=150, metadata={"Software": None})
        plt.close(figure)


if __name__ == "__main__":
    main()
