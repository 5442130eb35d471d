#!/usr/bin/env python3
"""minfer's kernels and whole models beside PyTorch, torch.compile, Triton, cuBLAS and cuDNN on one card, in one run.

    scripts/compare_torch.py --minfer build/release/tools/minfer --out docs/benchmarks/compare
    scripts/compare_torch.py --minfer build/cpu/tools/minfer --device cpu --quick --out build/compare

Every operation runs on the same inputs in all implementations, whose results are compared with float64 within bounds
that follow from F16. Times are those of launches in a CUDA graph over rotating operands, in turns: median, lowest and
highest of the samples, beside the limits that `minfer bench limits` measures at the beginning. minfer's kernels run in
a process of their own (tests/bench/cuda_compare_bench). Writes OUT.json, OUT.csv and OUT.md; exit 1 if a result is
wrong. Needs PyTorch 2.7 or later with Triton; --quick with --device cpu tries the script itself on tiny shapes.
"""
import argparse
import datetime
import gc
import importlib.util
import json
import os
import pathlib
import platform
import subprocess
import sys
import time

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from compare import harness, operations, report, whole_model  # noqa: E402

SECTIONS = ("rows", "gemm", "attention", "route", "model", "kernels")
START = time.monotonic()


def log(text):
    print(f"{time.monotonic() - START:5.0f} s  {text}", file=sys.stderr, flush=True)


def output_of(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def measured_limits(minfer, device):
    """Bytes/s of reads and copies, flop/s of F16 products (on a CPU of F32 multiply-adds)."""
    limits = json.loads(output_of([minfer, "bench", "limits", "--json", "--device", device]))["limits"]
    if device == "cpu":
        return {"read": limits["read_bytes_per_s"], "copy": limits["copy_bytes_per_s"], "hgemm": limits["fma_flops_per_s"]}
    card = limits["cuda"]
    return {"read": card["read_bytes_per_s"], "copy": card["copy_bytes_per_s"],
            "hgemm": max((card["hgemm_flops_per_s"] or {}).values(), default=0)}


def implementations_of(case, kernels, n_sets, n_launches, on_card, failures):
    """Those that run here, with what each allocates beside its result, and their largest errors."""
    ready, memory, errors = {}, {}, {}
    sets = [case.make_set() for _ in range(n_sets)]
    makers = {name: lambda f=f: harness.Timed(f, sets, n_launches, on_card) for name, f in case.functions.items()}
    if kernels is not None and case.kernel[1]:
        dims, inputs, outputs = case.kernel
        makers["minfer"] = lambda: kernels.prepare(case.operation, dims, inputs, outputs, n_sets, n_launches)
    for name, make in makers.items():
        try:
            implementation = make()
            if name not in case.unchecked:
                errors[name] = case.error(implementation.result)
            if case.measures_memory:
                if isinstance(implementation, harness.Timed):
                    implementation.measure_memory()
                memory[name] = None if implementation.extra_bytes is None else implementation.extra_bytes / 1e6
            ready[name] = implementation
        except (harness.Failed, RuntimeError, torch.OutOfMemoryError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            failures.append({"operation": case.operation, "shape": case.shape, "implementation": name, "error": reason})
            log(f"{case.operation} {case.shape} {name}: {reason}")
    return ready, memory, errors


def compare_operations(section, table, kernels, triton, args, failures):
    for make_case in operations.cases(section, args.device, triton, args.quick):
        torch._dynamo.reset()
        case = make_case()
        _, seconds = table.limit_of(case.bound, case.n_bytes, case.n_flops)
        n_sets, n_launches = table.sets_and_launches(case.n_bytes, seconds)
        ready, memory, errors = implementations_of(case, kernels, n_sets, n_launches, table.on_card, failures)
        table.add(case.operation, case.shape, table.measure(ready), case.bound, case.n_bytes, case.n_flops, errors, memory)
        for name, error in errors.items():
            if not error <= 1:
                failures.append({"operation": case.operation, "shape": case.shape, "implementation": name,
                                 "error": f"the result is off by {error:.3g} times its bound"})
                log(failures[-1]["error"] + f": {name}")
        del case, ready
        gc.collect()
        if table.on_card:
            torch.cuda.empty_cache()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minfer", type=pathlib.Path, required=True)
    parser.add_argument("--kernels", type=pathlib.Path, help="cuda_compare_bench; beside minfer by default")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the name of the records without its end")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny shapes")
    parser.add_argument("--sections", type=lambda text: text.split(","), default=list(SECTIONS),
                        help="some of " + ",".join(SECTIONS))
    parser.add_argument("--add", action="store_true", help="to the record that is there, of the same card and day")
    parser.add_argument("--rounds", type=int, default=15, help="samples of each implementation")
    args = parser.parse_args()
    on_card = args.device == "cuda"
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False

    binary = args.kernels or args.minfer.resolve().parents[1] / "tests/bench/cuda_compare_bench"
    kernels = harness.Kernels(binary) if on_card else None
    triton = None
    if importlib.util.find_spec("triton") and (on_card or "TRITON_INTERPRET" in os.environ):
        from compare import triton_kernels as triton
    limits = measured_limits(args.minfer, args.device)
    record = {
        "command": " ".join(["scripts/compare_torch.py", *(os.path.basename(x) for x in sys.argv[1:])]),
        "date": datetime.date.today().isoformat(), "machine": platform.machine(),
        "card": torch.cuda.get_device_name() if on_card else platform.processor() or "CPU",
        **harness.query_card(("driver_version", "clocks.max.sm", "power.limit")),
        "torch": torch.__version__, "cuda": torch.version.cuda,
        "triton": triton and triton.triton.__version__, "cudnn": on_card and torch.backends.cudnn.version(),
        "minfer": output_of([args.minfer, "--version"]).splitlines()[0], "limits": limits,
        "seconds": {}, "failures": [], "results": [], "models": [],
    }
    table = harness.Table(limits, on_card, 2 if args.quick else args.rounds, log)
    if args.add:
        earlier = json.loads(pathlib.Path(f"{args.out}.json").read_text(encoding="utf-8"))
        if (earlier["card"], earlier["date"]) != (record["card"], record["date"]):
            sys.exit(f"--add: the record is of {earlier['card']}, {earlier['date']}")
        record = {**earlier, "command": earlier["command"] + "; " + record["command"]}
        table.limits, table.rows = record["limits"], record["results"]

    def write():
        record["results"] = table.rows
        report.write(args.out, record)

    for section in args.sections:
        begin = time.monotonic()
        if section in ("rows", "gemm", "attention", "route"):
            compare_operations(section, table, kernels, triton, args, record["failures"])
        elif section == "model":
            record["models"] = whole_model.compare(args.minfer, args.device, args.quick, 2 if args.quick else 8, log)
        elif section == "kernels":
            quick = ["--filter", "silu"] if args.quick else []
            record["kernels"] = json.loads(output_of(
                [args.minfer, "bench", "kernels", "--json", "--device", args.device, *quick]))
            if on_card:  # one GEMM at a time, beside cuBLAS
                lines = output_of([binary.parent / "cuda_gemm_bench", "called"]).splitlines()
                record["gemm_called"] = [json.loads(line) for line in lines]
        else:
            sys.exit(f"--sections: no section {section}")
        record["seconds"][section] = round(time.monotonic() - begin, 1)
        write()
        log(f"{section} done")
    if kernels is not None:
        kernels.remove()
    print(report.summary(record))
    wrong = [x for x in record["failures"] if "times its bound" in x["error"]]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
