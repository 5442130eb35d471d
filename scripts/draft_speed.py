#!/usr/bin/env python3
"""How much faster minfer decodes with `--draft lookup`: texts that repeat themselves, and texts that do not.

    scripts/draft_speed.py --minfer build/release/tools/minfer -m smollm2 > docs/benchmarks/cpu_drafts.csv
    scripts/draft_speed.py ... --before PATH    in turns with another minfer

Each text is generated with and without drafts in turns, five times each; the CSV has the median of each, the lowest and
the highest. On the CPU, exit 1 if a text differs; on a card, whose passes of several tokens round otherwise, it is said on
stderr. Measure on a machine that is idle.
"""
import argparse
import datetime
import json
import platform
import statistics
import subprocess
import sys

STORY = ("The river rises in the hills above the old mill, runs past three villages and a railway bridge, and reaches the "
         "sea after forty miles. In spring it floods the meadows, and the farmers move their sheep to the higher fields "
         "until the water falls again.")
CODE = """def area(shape):
    if shape.kind == 'circle':
        return 3.14159 * shape.radius ** 2
    if shape.kind == 'square':
        return shape.side ** 2
    raise ValueError(shape.kind)
"""
GREEDY, SAMPLED = ["--temp", "0"], ["--temp", "0.9", "--seed", "7"]
TEXTS = {
    "a text that begins again": (f"{STORY}\n\n{STORY}\n\n{STORY[:40]}", GREEDY),
    "code that is edited": (f"{CODE}\n{CODE}\ndef area(shape):\n", GREEDY),
    "a greedy story": ("Once upon a time there was a lighthouse keeper who", GREEDY),
    "a sampled story": ("Once upon a time there was a lighthouse keeper who", SAMPLED),
    "a sampled essay": ("The history of paper begins in China, where", SAMPLED),
    "a sampled summary": (f"Summarize: {STORY} Summary:", SAMPLED),
}
TURNS = 5


def generate(options, program, prompt, sampling, draft):
    command = [program, "generate", "-m", options.model, "-n", str(options.n_predict), "--ignore-eos", "--json",
               "--device", options.device, "--draft", draft, *sampling, prompt]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minfer", required=True)
    parser.add_argument("--before", help="another minfer")
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-n", "--n-predict", type=int, default=200)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    options = parser.parse_args()
    print(f"# {platform.machine()}, {datetime.date.today()}, {options.model.split('/')[-1]}, {options.n_predict} tokens")
    print("# scripts/draft_speed.py: tokens/s without and with --draft lookup, medians of five turns")
    programs = {"before": options.before, "after": options.minfer} if options.before else {"after": options.minfer}
    print("text,way,without,without_low,without_high,with,with_low,with_high,speed_up,drafted,accepted")
    for name, (prompt, sampling) in TEXTS.items():
        results = {(way, draft): [] for way in programs for draft in ("none", "lookup")}
        for _ in range(TURNS):
            for (way, draft), of_both in results.items():
                of_both.append(generate(options, programs[way], prompt, sampling, draft))
        texts = {result["text"] for of_both in results.values() for result in of_both}
        if len(texts) != 1:
            message = f"{name}: the text with drafts is another one"
            if options.device == "cpu":
                sys.exit(message)
            print(message, file=sys.stderr)
        for way in programs:
            speeds = [[result["timings"]["decode_tokens_per_s"] for result in results[way, draft]]
                      for draft in ("none", "lookup")]
            without, with_drafts = map(statistics.median, speeds)
            figures = [f"{x:.1f}" for of in speeds for x in (statistics.median(of), min(of), max(of))]
            counts = [statistics.median(result[key] for result in results[way, "lookup"])
                      for key in ("drafted_tokens", "accepted_tokens")]
            print(",".join([name, way, *figures, f"{with_drafts / without:.3f}", *map(str, counts)]), flush=True)


if __name__ == "__main__":
    main()
