#!/usr/bin/env python3
"""Times `minfer generate --prompts`, greedy and drawn, of so many texts at once, in turns with another minfer. Prints
a CSV: seconds of the whole program, with reading the model. Fails if a text is not the same in both.

    scripts/make_random_model.py --shape tinyllama-1.1b MODEL
    scripts/prompts_speed.py --minfer build/release/tools/minfer --before OLDER -m MODEL --tokenizer tokenizer.model \\
        --device cuda"""
import argparse
import datetime
import json
import pathlib
import statistics
import sys
import tempfile
import time

from compare_gguf_types import machine
from run_command import run


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minfer", required=True)
    parser.add_argument("--before", help="another minfer")
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--tokenizer")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("-n", "--n-predict", type=int, default=256)
    parser.add_argument("--texts", type=int, default=32)
    parser.add_argument("--parallel", default="4,8")
    parser.add_argument("--turns", type=int, default=1)
    args = parser.parse_args()

    programs = {"before": args.before, "after": args.minfer} if args.before else {"after": args.minfer}
    tokenizer = ["--tokenizer", args.tokenizer] if args.tokenizer else []
    print(f"# {machine(args.device)}; {datetime.date.today()}; {args.texts} texts of {args.n_predict} tokens; medians of "
          f"{args.turns} turns\n# scripts/prompts_speed.py")
    print("way,temperature,parallel,wall_s")
    with tempfile.TemporaryDirectory() as directory:
        prompts = pathlib.Path(directory) / "prompts.jsonl"
        lines = (json.dumps({"prompt": f"Once upon a time there were {i} frogs"}) for i in range(args.texts))
        prompts.write_text("\n".join(lines) + "\n")
        for temperature in ("0", "0.8"):
            for parallel in args.parallel.split(","):
                seconds, texts = {way: [] for way in programs}, set()
                for _ in range(args.turns):
                    for way, program in programs.items():
                        start = time.monotonic()
                        out = run([program, "generate", "-m", args.model, *tokenizer, "--prompts", prompts,
                                   "--parallel", parallel, "-n", args.n_predict, "--temp", temperature, "--seed", 7,
                                   "--ignore-eos", "--device", args.device])
                        seconds[way].append(time.monotonic() - start)
                        results = sorted(map(json.loads, out.splitlines()), key=lambda result: result["id"])
                        texts.add(json.dumps([result["tokens"] for result in results]))
                if len(texts) != 1:
                    sys.exit(f"temperature {temperature}, {parallel} at once: the texts are not the same")
                for way, of_way in seconds.items():
                    print(f"{way},{temperature},{parallel},{statistics.median(of_way):.2f}", flush=True)


if __name__ == "__main__":
    main()
