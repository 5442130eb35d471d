#!/usr/bin/env python3
"""Draws docs/pictures from the records in docs/benchmarks (matplotlib).

Usage: scripts/plot_benchmarks.py
The background is transparent and the text grey, so that a picture is readable on light and dark pages.
"""
import csv
import pathlib

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "minfer"  # the same file each time
matplotlib.rcParams["svg.fonttype"] = "none"
import matplotlib.pyplot as plt  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
GREY = "#808890"
COLOURS = {"minfer": "#2f81f7", "torch.compile": "#d18616", "llama.cpp": "#8a8f98"}


def rows_of(name):
    with open(ROOT / "docs/benchmarks" / name, encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def save(figure, axes, path):
    """In grey, without the frame's upper and right side."""
    axes.tick_params(colors=GREY, which="both")
    axes.xaxis.label.set_color(GREY)
    axes.yaxis.label.set_color(GREY)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(GREY)
    figure.tight_layout()
    figure.savefig(path, transparent=True, metadata={"Date": None})


def decode(path):
    """Tokens/s of minfer and its peers for each type of weight, with minfer's read limit."""
    rows = rows_of("decode_peers.csv")
    groups = list(dict.fromkeys(row["weights"] for row in rows))
    figure, axes = plt.subplots(figsize=(7.2, 3.2))
    height = 0.25
    for i, group in enumerate(groups):
        of_group = [row for row in rows if row["weights"] == group]
        for j, row in enumerate(of_group):
            y, value = i + (j - 1) * (height + 0.02), float(row["tokens_per_s"])
            colour = next(c for name, c in COLOURS.items() if row["program"].startswith(name))
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
    save(figure, axes, path)


def fitted(samples, latencies, transfers):
    """Alpha (us) and beta (bytes/us) of latencies * alpha + transfers * bytes / beta, by relative squares."""
    sums = [0.0] * 5
    for size, time in samples:
        x, y = latencies / time, transfers * size / time
        for i, value in enumerate((x * x, x * y, y * y, x, y)):
            sums[i] += value
    xx, xy, yy, xt, yt = sums
    determinant = xx * yy - xy * xy
    return (xt * yy - yt * xy) / determinant, determinant / (xx * yt - xy * xt)


def all_reduce(path):
    """Time of an all-reduce between two cards over its size, with the alpha-beta model fitted to each algorithm."""
    samples = [(float(row["bytes"]), float(row["us"])) for row in rows_of("cuda_all_reduce.csv")]
    figure, axes = plt.subplots(figsize=(7.2, 3.2))
    one_shot, ring = [s for s in samples if s[0] <= 2**19], [s for s in samples if s[0] > 2**19]
    for name, of_kind, latencies, colour in (("one-shot", one_shot, 1, "#2f81f7"), ("ring", ring, 2, "#d18616")):
        alpha, beta = fitted(of_kind, latencies, 1)
        axes.plot(*zip(*of_kind), "o", color=colour, markersize=4)
        axes.plot([s[0] for s in of_kind], [latencies * alpha + s[0] / beta for s in of_kind], color=colour,
                  label=f"{name}: {latencies} x {alpha:.1f} us + bytes / {beta / 1000:.0f} GB/s")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks([2**i for i in range(13, 29, 3)], ["8 KB", "64 KB", "512 KB", "4 MB", "32 MB", "256 MB"])
    axes.set_ylabel("us")
    axes.set_xlabel("F32 sums between two H100: measured (dots), fitted (lines)")
    axes.legend(frameon=False, labelcolor=GREY)
    save(figure, axes, path)


def main():
    pictures = ROOT / "docs/pictures"
    pictures.mkdir(exist_ok=True)
    decode(pictures / "decode.svg")
    all_reduce(pictures / "all_reduce.svg")


if __name__ == "__main__":
    main()
