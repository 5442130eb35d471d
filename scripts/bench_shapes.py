#!/usr/bin/env python3
"""Measures synthetic models of several shapes, or GGUF files, and writes a CSV: tokens/s of a prompt and of decode,
with the share of the limit that binds each, measured in the same run.

    scripts/bench_shapes.py --minfer build/release/tools/minfer --device cuda \\
        --shapes mixtral-8x7b:int4,qwen3-30b-a3b:int4 --out docs/benchmarks/cuda_moe.csv
    scripts/bench_shapes.py ... --before PATH    in turns with another minfer, and the ratio to it

Prompts and decode have processes of their own. A speed is the median of the turns' medians, and its
spread the difference between the turns over the median."""
import csv
import datetime
import pathlib

from compare_gguf_types import machine, middle, parser_of, rows, speed_of


def main():
    parser = parser_of(__doc__, gen=64)
    parser.add_argument("--before", help="another minfer")
    parser.add_argument("--shapes", required=True, help="of minfer bench --synthetic: SHAPE:TYPE,...; or FILE.gguf")
    parser.add_argument("--prompt", default="2048", help="tokens, or several lengths: 2,8,32")
    parser.add_argument("--activations", help="of minfer bench, on the CPU")
    parser.add_argument("--turns", type=int, default=2)
    args = parser.parse_args()

    with open(args.out, "w", newline="") as out:
        out.write(f"# {machine(args.device)}; {datetime.date.today()}; {args.turns} turns of {args.repetitions} "
                  f"repetitions; all behind {args.depth} tokens\n"
                  "# scripts/bench_shapes.py; speeds in tokens/s; of_limit: the share of the limit that binds, bytes "
                  "read or arithmetic, measured in the same run"
                  + ("; before: an earlier minfer in turns with this one\n" if args.before else "\n"))
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(("shape", "weights", "test", "tokens_per_s", "spread", "of_limit")
                        + (("before", "ratio") if args.before else ()))
        for shape in args.shapes.split(","):
            programs = [args.before, args.minfer] if args.before else [args.minfer]
            is_file = shape.endswith(".gguf")
            model = ["-m" if is_file else "--synthetic", shape]
            model += ["--activations", args.activations] if args.activations else []
            name = [pathlib.Path(shape).stem, "gguf"] if is_file else [*shape.split(":"), "f16"][:2]
            turns = [[rows([program, "bench", *model, "--device", args.device], args) for program in programs]
                     for _ in range(args.turns)]
            *before, own = zip(*turns)
            for test in own[0]:
                speed, spread = middle(own, test, speed_of)
                share, _ = middle(own, test, lambda row: row["limit_share"])
                figures = [f"{speed:.1f}", f"{spread:.3f}", f"{share:.3f}"]
                for other in before:
                    theirs, _ = middle(other, test, speed_of)
                    figures += [f"{theirs:.1f}", f"{speed / theirs:.2f}"]
                writer.writerow((*name, test, *figures))
                print(shape, test, *figures, flush=True)
            out.flush()


if __name__ == "__main__":
    main()
