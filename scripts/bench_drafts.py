#!/usr/bin/env python3
"""Measures passes of a token and a draft behind it, and of a token of each of several sequences, of synthetic models, and
writes a CSV: tokens/s, milliseconds of a pass, and these over a step without a draft of the same run.

    scripts/bench_drafts.py --minfer build/release/tools/minfer --device cuda \\
        --shapes llama-2-7b:int4,llama-2-7b:int8 --out FILE
    scripts/bench_drafts.py ... --before PATH    another minfer's passes, too
    scripts/bench_drafts.py ... --parallel 2,4,8    of so many sequences, too

A step without a draft is one of a run of steps, which the card chains."""
import csv
import datetime
import json

from compare_gguf_types import machine, parser_of, run, sizes_of, speed_of


def main():
    parser = parser_of(__doc__, gen=128, repetitions=2)
    parser.add_argument("--before", help="another minfer")
    parser.add_argument("--shapes", required=True, help="of minfer bench --synthetic: SHAPE:TYPE,...")
    parser.add_argument("--drafted", default="1,3", help="tokens of a draft")
    parser.add_argument("--accepted", type=int, default=60, help="of them, in percent")
    parser.add_argument("--parallel", help="sequences side by side, without drafts")
    args = parser.parse_args()

    kinds = [["--draft-tokens", f"0,{args.drafted}", "--draft-accepted", args.accepted]]
    if args.parallel:
        kinds.append(["--parallel", args.parallel])
    programs = {"before": args.before, "after": args.minfer} if args.before else {"after": args.minfer}
    with open(args.out, "w", newline="") as out:
        out.write(f"# {machine(args.device)}; {datetime.date.today()}; {args.repetitions} repetitions of {args.gen} "
                  f"tokens\n# scripts/bench_drafts.py; {args.accepted} % of a draft are accepted; times_one: over the "
                  "step without a draft of the same run\n")
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(("way", "shape", "depth", "drafted", "sequences", "tokens_per_s", "pass_ms", "times_one"))
        for shape in args.shapes.split(","):
            for way, program in programs.items():
                step = None  # ms, without a draft
                for kind in kinds:
                    options = [*sizes_of(args, 0, args.gen), *kind, "--device", args.device, "-o", "jsonl"]
                    lines = run([program, "bench", "--synthetic", shape, *options]).splitlines()
                    for row in map(json.loads, filter(lambda line: line.startswith("{"), lines)):
                        speed, n, sequences = speed_of(row), row["n_draft"], row["n_parallel"]
                        milliseconds = 1000 * sequences * (1 + n * (row["accepted_share"] or 0)) / speed
                        step = step or milliseconds
                        figures = (f"{speed:.1f}", f"{milliseconds:.3f}", f"{milliseconds / step:.2f}")
                        writer.writerow((way, shape, args.depth, n, sequences, *figures))
                        print(way, shape, n, sequences, *figures, flush=True)
            out.flush()


if __name__ == "__main__":
    main()
