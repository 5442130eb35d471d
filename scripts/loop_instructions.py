#!/usr/bin/env python3
"""Counts the instructions of the loops of the persistent decode step that multiply codes, as a CSV: those of one instance
(one query head, Llama's block) for each kind of weights. It needs nvcc and nvdisasm, and no card.

    scripts/loop_instructions.py [--before TREE] > docs/benchmarks/cuda_loop_instructions.csv

A function has its loops in the order of the code: those of four, two and one tiles, of Codes and the kernel each followed
by loops for the last stages; the kernel itself has those of several formats. mma: the MMAs of a loop. --before TREE:
another tree of the project, whose functions have as many loops, if it has the kind of weights."""
import argparse
import csv
import datetime
import pathlib
import re
import sys
import tempfile

from run_command import run

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE = """#include "kernels/cuda/decode/persistent/step_kernel.cuh"
namespace minfer::cuda {{
template __global__ void decode_step_kernel<StepInstance<1, 128, true, StepWeights::{weights}, false>>(
    const __grid_constant__ StepParams);
}}
"""
PARAMS = "kernels/cuda/decode/persistent/step_params.h"
FORMATS = ("F16", "BF16", "U2", "U3", "U4", "U5", "U5Short", "U6", "Table", "U8")  # StepFormat
FUNCTION = re.compile(r"(Products|Codes)LoopIL\S*?StepFormatE(\d+)ELi(\d+)ELb([01])E")


def name_of(symbol):
    """Such as "Products<U4 32 mins>", of a mangled ProductsLoop; "kernel" of the kernel itself."""
    found = FUNCTION.search(symbol)
    if not found:
        return "kernel" if "decode_step_kernel" in symbol else None
    loop, code_format, number, mins = found.groups()
    return f"{loop}<{FORMATS[int(code_format)]} {number}{' mins' if mins == '1' else ''}>"


def lines_by_function(assembly):
    """Labels (with a colon) and instructions of each function."""
    functions, lines = {}, None
    for line in assembly.splitlines():
        if head := re.match(r"(?:\.text\.(\S+)|([$_]\S+)):", line):
            lines = functions.setdefault(name_of(head[1] or head[2]), [])
        elif label := re.match(r"(\.L_\S+):", line):
            lines.append(label[1] + ":")
        elif instruction := re.search(r"/\*[0-9a-f]{4,}\*/\s+(.*?);", line):
            lines.append(instruction[1])
    return {name: lines for name, lines in functions.items() if name}


def loops_of(lines):
    """(instructions, MMAs) of each innermost loop that multiplies codes; attention's have exponentials."""
    places = {line[:-1]: i for i, line in enumerate(lines) if line.endswith(":")}
    spans = []
    for end, line in enumerate(lines):
        jump = re.search(r"\bBRA\b.*`\((\.L_\S+)\)", line)
        begin = places.get(jump[1], end) if jump else end
        if begin < end and any("IMMA" in own for own in lines[begin:end]):
            spans.append((begin, end))
    inner = [(b, e) for b, e in spans if not any(b <= x and y <= e and (b, e) != (x, y) for x, y in spans)]
    bodies = [[own for own in lines[begin:end + 1] if not own.endswith(":")] for begin, end in inner]
    return [(len(body), sum("IMMA" in own for own in body)) for body in bodies
            if not any("MUFU" in own or "HMMA" in own for own in body)]


def kinds_of(tree):
    """The kinds of weights with loops for codes that are not those of another kind."""
    enum = re.search(r"enum class StepWeights {(.*?)}", (tree / PARAMS).read_text())[1]
    return [kind for kind in enum.replace(" ", "").split(",") if kind not in ("Floats", "Codes")]


def loops_of_tree(tree, weights):
    with tempfile.TemporaryDirectory() as directory:
        source, cubin = (pathlib.Path(directory) / f"step.{end}" for end in ("cu", "cubin"))
        source.write_text(SOURCE.format(weights=weights))
        run(["nvcc", "-O3", "-DNDEBUG", "-std=c++20", "-arch=sm_90a", "-cubin", "-diag-suppress=186", "-I", tree,
             source, "-o", cubin])
        functions = lines_by_function(run(["nvdisasm", "-c", cubin]))
    return {name: loops for name, lines in functions.items() if (loops := loops_of(lines))}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=pathlib.Path, help="another tree of the project")
    args = parser.parse_args()
    release = re.search(r"release ([\d.]+)", run(["nvcc", "--version"]))[1]
    print(f"# nvcc {release}, sm_90a; {datetime.date.today()}\n# scripts/loop_instructions.py; instructions of a loop, all "
          "paths of it" + ("; before: of another tree" if args.before else ""))
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(("weights", "function", "loop", "mma", *(("before",) if args.before else ()), "instructions"))
    kinds_before = kinds_of(args.before) if args.before else []
    for weights in kinds_of(ROOT):
        now = loops_of_tree(ROOT, weights)
        before = loops_of_tree(args.before, weights) if weights in kinds_before else {}
        for name, loops in sorted(now.items()):
            if before and len(before.get(name, ())) != len(loops):
                sys.exit(f"{weights} {name}: {len(loops)} loops, {len(before.get(name, ()))} before")
            for i, (n, n_mmas) in enumerate(loops):
                n_before = before[name][i][0] if before else ""
                writer.writerow((weights, name, i + 1, n_mmas, *((n_before,) if args.before else ()), n))


if __name__ == "__main__":
    main()
