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


def all_reduce(path):
    """Time of an all-reduce between two cards over its size, with the alpha-beta model fitted to each algorithm."""
    rows = [row for row in rows_of("cuda_all_reduce.csv") if row["type"] == "F16" and row["adds_to_residual"] == "0"]
    figure, axes = plt.subplots(figsize=(7.2, 3.2))
    colours = {"one-shot": "#2f81f7", "two-shot": "#3fb950", "ring": "#d18616", "nccl": GREY}
    for name, colour in colours.items():
        of_kind = [row for row in rows if row["algorithm"] == name]
        sizes = [float(row["bytes"]) for row in of_kind]
        label = "NCCL" if name == "nccl" else name
        axes.plot(sizes, [float(row["us"]) for row in of_kind], "o", color=colour, markersize=3, label=label)
        if name != "nccl":  # it changes its algorithm with the size
            axes.plot(sizes, [float(row["predicted_us"]) for row in of_kind], color=colour, linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks([2**i for i in range(10, 29, 3)], ["1 KB", "8 KB", "64 KB", "512 KB", "4 MB", "32 MB", "256 MB"])
    axes.set_ylabel("us")
    axes.set_xlabel("F16 sums of two H100: measured (dots), alpha-beta model (lines)")
    axes.legend(frameon=False, labelcolor=GREY)
    save(figure, axes, path)


def main():
    pictures = ROOT / "docs/pictures"
    pictures.mkdir(exist_ok=True)
    decode(pictures / "decode.svg")
    all_reduce(pictures / "all_reduce.svg")


if __name__ == "__main__":
    main()
