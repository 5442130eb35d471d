#!/usr/bin/env python3
"""Measures minfer and llama.cpp in turns on the same GGUF files, one for each shape and type of
blocks, and writes a CSV: tokens/s of a prompt and of decode behind it.

    scripts/compare_gguf_types.py --minfer build/release/tools/minfer --llama-bench PATH \\
        --device cuda --shape llama-2-7b --types q4_k_m,q4_0 --out docs/benchmarks/cuda_gguf_types.csv
    scripts/compare_gguf_types.py ... --device cpu --shape llama-2-7b --make "--layers 8" --turns 5
    scripts/compare_gguf_types.py ... --device cuda --shape mixtral-8x7b,qwen3-30b-a3b --types q4_0,q4_k_m

The files come from make_random_gguf.py and are deleted again. Prompts and decode have processes of
their own, since a card's clock is lower right behind a prompt; with a long --depth llama.cpp decodes
behind one all the same. A speed is the median of the turns' medians, and its spread the difference
between the turns over the median. Of several sizes of llama.cpp's physical batch the fastest counts."""
import argparse
import csv
import datetime
import itertools
import json
import os
import pathlib
import platform
import statistics
import sys
import tempfile

from run_command import run

MAKE = pathlib.Path(__file__).resolve().parent / "make_random_gguf.py"


def rows(command, args):
    """The fastest row of each test of minfer bench or llama-bench: "pp2048", "tg128"."""
    of = {}
    for sizes in ((args.prompt, 0), (0, args.gen)):
        if all(str(n) == "0" for n in sizes):  # a list of prompts is a text
            continue
        lines = run([*command, *sizes_of(args, *sizes), "-o", "jsonl"]).splitlines()
        for row in map(json.loads, filter(lambda line: line.startswith("{"), lines)):
            test = f"pp{row['n_prompt']}" if row["n_prompt"] else f"tg{row['n_gen']}"
            of[test] = max(of.get(test, row), row, key=speed_of)
    return of


def speed_of(row):
    return statistics.median(row["samples_ts"])


def middle(turns, test, key):
    values = [key(turn[test]) for turn in turns]
    return statistics.median(values), (max(values) - min(values)) / statistics.median(values)


def parser_of(doc, **defaults):
    """The arguments of every script that writes what minfer bench measures to a CSV."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minfer", required=True)
    parser.add_argument("--device", required=True, help="cpu or cuda")
    parser.add_argument("--gen", type=int)
    parser.add_argument("--depth", type=int, default=128)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.set_defaults(**defaults)
    return parser


def sizes_of(args, n_prompt, n_gen):
    return ["-p", n_prompt, "-n", n_gen, "-d", args.depth, "-r", args.repetitions]


def measure(args, path):
    """The rows of a file, and the version of llama.cpp."""
    ours = [args.minfer, "bench", "-m", path, "--device", args.device]
    theirs = [args.llama_bench, "-m", path]
    theirs += ["-t", os.cpu_count()] if args.device == "cpu" else ["-ngl", 99, "-fa", "on"]
    theirs += ["-ub", args.batch] if args.batch else []
    turns = [(rows(ours, args), rows(theirs, args)) for _ in range(args.turns)]
    minfer, llama = zip(*turns)
    figures = []
    for test in minfer[0]:
        speed = {name: middle(runs, test, speed_of) for name, runs in (("minfer", minfer), ("llama", llama))}
        share, _ = middle(minfer, test, lambda row: row["limit_share"])
        figures.append((test, f"{speed['minfer'][0]:.1f}", f"{speed['minfer'][1]:.3f}", f"{share:.3f}",
                        f"{speed['llama'][0]:.1f}", f"{speed['llama'][1]:.3f}",
                        f"{speed['minfer'][0] / speed['llama'][0]:.2f}"))
    return figures, next(iter(llama[0].values())).get("build_commit", "of an unknown version")


def machine(device):
    if device != "cpu":
        card = run(["nvidia-smi", "--id=0", "--query-gpu=name,driver_version", "--format=csv,noheader"])
        return card.strip().replace(", ", ", driver ")
    with open("/proc/cpuinfo") as info:
        names = [line.split(":")[1].strip() for line in info if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} threads"


def main():
    parser = parser_of(__doc__, gen=128)
    parser.add_argument("--llama-bench", required=True)
    parser.add_argument("--llama-version", help="what the record calls it; a build without git does not know")
    parser.add_argument("--shape", default="llama-2-7b", help="or several")
    parser.add_argument("--make", default="", help="more arguments of make_random_gguf.py")
    parser.add_argument("--types", default="q4_0,q4_1,q8_0,q4_k,q4_k_m,q5_k,q5_k_m,q6_k,iq4_xs")
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--batch", help="-ub of llama-bench: one size or several, 512,2048")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--directory", help="of the files, of several GB")
    args = parser.parse_args()
    shapes, types = args.shape.split(","), args.types.split(",")

    by_shape = len(shapes) > 1

    def write_head(out, writer, version):
        shape = " ".join([args.shape, *args.make.split()])
        out.write(f"# {machine(args.device)}; {datetime.date.today()}; {shape}; {args.turns} turns of "
                  f"{args.repetitions} repetitions, in turns with llama-bench"
                  f"{f' -ub {args.batch}' if args.batch else ''} (llama.cpp {version}); both behind {args.depth} "
                  "tokens\n# scripts/compare_gguf_types.py; speeds in tokens/s; of_limit: minfer's share of the "
                  "limit that binds it, measured in the same run; ratio: minfer over llama.cpp\n")
        writer.writerow((*(["shape"] if by_shape else []), "type", "test", "minfer", "minfer_spread", "of_limit",
                         "llama_cpp", "llama_cpp_spread", "ratio"))

    with open(args.out, "w", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        for shape, file_type in itertools.product(shapes, types):
            with tempfile.TemporaryDirectory(dir=args.directory) as directory:
                path = pathlib.Path(directory) / f"{file_type}.gguf"
                run([sys.executable, MAKE, "--shape", shape, "--type", file_type,
                     *args.make.split(), path])
                figures, version = measure(args, path)
            if out.tell() == 0:
                write_head(out, writer, args.llama_version or version)
            for row in figures:
                row = (*([shape] if by_shape else []), file_type, *row)
                writer.writerow(row)
                print(*row, flush=True)
            out.flush()


if __name__ == "__main__":
    main()
