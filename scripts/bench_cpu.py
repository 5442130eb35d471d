#!/usr/bin/env python3
"""Measures the CPU backend beside the machine's limits and, where given, beside llama.cpp.

One round runs everything once; rounds follow one another, so that each ratio is taken within the
same minutes. Writes JSON with every sample and prints the table of docs/benchmarks/cpu.md.

    scripts/bench_cpu.py --minfer build/release/tools/minfer --out docs/benchmarks/cpu.json \\
        [--llama-bench PATH --llama-model tinyllama-1.1b-f16.gguf] [--limits PATH] [--rounds 5]
    scripts/bench_cpu.py ... --model tinyllama-1.1b:int4 --activations int8 --llama-model ...-q4_0.gguf

--limits is a program that prints one JSON object per line ({"what", "threads", "GBps", "GFLOPs" or
"GOPs"}); without it the limits are those of `minfer bench limits`, which has no peak of int8. The llama.cpp model is any file of the same
shape: the weights' values do not matter for speed.
"""
import argparse
import contextlib
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys

from run_command import run


@contextlib.contextmanager
def busy_process():
    """Another process that computes without end, as the system's other users do."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def measure_limits(args):
    """Read bandwidth in bytes/s, f32 FMA rate in flop/s, int8 rate in op/s, with all threads."""
    if not args.limits:
        limits = json.loads(run([args.minfer, "bench", "limits", "--json"]))["limits"]
        return {"read": limits["read_bytes_per_s"], "fma": limits["fma_flops_per_s"]}
    lines = [json.loads(line) for line in run([args.limits]).splitlines()]
    threads = max(line["threads"] for line in lines)
    rate = {line["what"]: line for line in lines if line["threads"] == threads}
    return {"read": rate["read"]["GBps"] * 1e9, "fma": rate["f32 fma"]["GFLOPs"] * 1e9,
            "int8": rate["int8 vnni"]["GOPs"] * 1e9}


def bench_rows(command):
    """llama-bench's JSON rows, ours and theirs, as {"pp512": row, "tg128": row}."""
    rows = json.loads(run(command))
    for row in rows:
        if "model_filename" in row:
            row["model_filename"] = os.path.basename(row["model_filename"])
    return {f"pp{r['n_prompt']}" if r["n_gen"] == 0 else f"tg{r['n_gen']}": r for r in rows}


def measure_round(args):
    model = ["-m", args.model] if os.path.exists(args.model) else ["--synthetic", args.model]
    ours = [args.minfer, "bench", *model, "--activations", args.activations, "-o", "json", "-r", "3"]
    sizes = ["-p", str(args.prompt), "-n", str(args.gen)]
    decode = ["-p", "0", "-n", str(args.gen)]
    result = {"limits": measure_limits(args), "minfer": bench_rows(ours + sizes)}
    with busy_process():
        result["minfer_busy"] = bench_rows(ours + decode)
    if args.llama_bench:
        theirs = [args.llama_bench, "-m", args.llama_model, "-o", "json", "-r", "3",
                  "-t", str(os.cpu_count())]
        result["llama"] = bench_rows(theirs + sizes)
        with busy_process():
            result["llama_busy"] = bench_rows(theirs + decode)
    return result


def cpu_model():
    with open("/proc/cpuinfo") as f:
        for line in f:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def table(rounds, args):
    """Lines of Markdown: median and range over the rounds."""
    def spread(values, form):
        return f"{form(statistics.median(values))} ({form(min(values))} to {form(max(values))})"

    rate = lambda x: f"{x:.1f}"
    share = lambda x: f"{100 * x:.0f} %"
    pp, tg = f"pp{args.prompt}", f"tg{args.gen}"
    flops = args.gflop_per_token * 1e9
    col = lambda f: [f(r) for r in rounds]
    bytes_per_token = rounds[0]["minfer"][tg]["bytes_per_token"]
    out = ["| | median (range) |", "|---|---|"]
    add = lambda name, values, form: out.append(f"| {name} | {spread(values, form)} |")
    add("read bandwidth, GB/s", col(lambda r: r["limits"]["read"] * 1e-9), rate)
    peak, peak_name = ("fma", "f32 FMA") if args.activations == "float" else ("int8", "int8 VNNI")
    has_peak = peak in rounds[0]["limits"]
    if has_peak:
        add(f"{peak_name} peak, Gop/s", col(lambda r: r["limits"][peak] * 1e-9), rate)
    add(f"minfer {tg}, tok/s", col(lambda r: r["minfer"][tg]["avg_ts"]), rate)
    add("  share of the read bandwidth",
        col(lambda r: r["minfer"][tg]["avg_ts"] * bytes_per_token / r["limits"]["read"]), share)
    add(f"minfer {pp}, tok/s", col(lambda r: r["minfer"][pp]["avg_ts"]), rate)
    if has_peak:
        add(f"  share of the {peak_name} peak",
            col(lambda r: r["minfer"][pp]["avg_ts"] * flops / r["limits"][peak]), share)
    add(f"minfer {tg} beside a busy process: speed kept",
        col(lambda r: r["minfer_busy"][tg]["avg_ts"] / r["minfer"][tg]["avg_ts"]), share)
    if args.llama_bench:
        for test in (tg, pp):
            add(f"llama.cpp {test}, tok/s", col(lambda r: r["llama"][test]["avg_ts"]), rate)
            add(f"  minfer / llama.cpp, {test}",
                col(lambda r: r["minfer"][test]["avg_ts"] / r["llama"][test]["avg_ts"]),
                lambda x: f"{x:.2f}")
        add(f"llama.cpp {tg} beside a busy process: speed kept",
            col(lambda r: r["llama_busy"][tg]["avg_ts"] / r["llama"][tg]["avg_ts"]), share)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minfer", required=True)
    parser.add_argument("--llama-bench")
    parser.add_argument("--llama-model")
    parser.add_argument("--limits")
    parser.add_argument("--model", default="tinyllama-1.1b:f16", help="a synthetic one, or a file")
    parser.add_argument("--activations", default="float", choices=("float", "int8", "int8-asym"))
    parser.add_argument("--gflop-per-token", type=float, default=1.85,
                        help="matmul work of one prefill token; the output layer and the last block, "
                             "but for its keys and values, run once a prompt")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--gen", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()

    rounds = []
    for i in range(args.rounds):
        rounds.append(measure_round(args))
        print(f"round {i + 1} of {args.rounds} done", file=sys.stderr)
    lines = table(rounds, args)
    record = {
        "command": "scripts/bench_cpu.py " + " ".join(
            f"--{k.replace('_', '-')} {os.path.basename(v) if isinstance(v, str) and '/' in v else v}"
            for k, v in vars(args).items() if v is not None),
        "date": datetime.date.today().isoformat(),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "kernel": platform.release().split("-")[0],
        "version": run([args.minfer, "--version"]).strip(),
        "rounds": rounds,
        "table": lines,
    }
    with open(args.out, "w") as f:
        json.dump(record, f, indent=1)
        f.write("\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
