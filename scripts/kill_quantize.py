#!/usr/bin/env python3
"""Kills `minfer quantize` at moments spread evenly over its run time, and checks after each kill that
the input is as it was, that what has the output's name is whole, and that the next run leaves nothing
else behind. Exits with 1 where it is not so."""
import argparse
import hashlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time


def digests(directory):
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.iterdir())
        if path.is_file()
    }


def command(args, output):
    return [args.minfer, "quantize", str(args.model), str(output), "-q", "-t", str(args.threads)]


def run_whole(args, output):
    start = time.monotonic()
    subprocess.run(command(args, output), check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - start


def bytes_written(place, output):
    """Of the staging directory beside the output."""
    total = 0
    for item in place.glob(f".{output.name}.minfer-*/*"):
        try:
            total += item.stat().st_size
        except FileNotFoundError:  # the run went on meanwhile
            pass
    return total


def kill_after(args, output, delay):
    """Seconds after the start. Returns whether any output had been written by then."""
    process = subprocess.Popen(command(args, output), stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    time.sleep(delay)
    wrote = bytes_written(output.parent, output) > 0 or output.exists()
    process.send_signal(signal.SIGKILL)
    process.wait()
    return wrote


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=pathlib.Path, help="directory that takes >= 2 s to quantize")
    parser.add_argument("--minfer", default="build/release/tools/minfer")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()

    place = pathlib.Path(tempfile.mkdtemp(prefix="minfer-kill-"))
    output, reference = place / "out", place / "reference"
    faults = []

    def require(condition, message):
        if not condition:
            faults.append(message)
            print("FAULT", message, flush=True)

    try:
        before = digests(args.model)
        seconds = run_whole(args, reference)
        whole = digests(reference)
        print(f"a run takes {seconds:.2f} s and writes {len(whole)} files", flush=True)
        n_writing = n_finished = 0
        for i in range(args.kills):
            n_writing += kill_after(args, output, seconds * (i + 0.5) / args.kills)
            require(digests(args.model) == before, f"kill {i}: the input has changed")
            if output.exists():
                n_finished += 1
                require(digests(output) == whole, f"kill {i}: the output is damaged")
                shutil.rmtree(output)
            left = [name for name in os.listdir(place)
                    if name != "reference" and not name.startswith(".out.minfer-")]
            require(not left, f"kill {i}: left {left}")
            require(len(os.listdir(place)) <= 3, f"kill {i}: debris of earlier runs is still there")
        run_whole(args, output)
        require(digests(output) == whole, "the last run: another output")
        require(sorted(os.listdir(place)) == ["out", "reference"], "the last run: debris is left")
        print(f"{args.kills} kills, {n_writing} of them after the first output byte, {n_finished} "
              f"after the last; {len(faults)} faults")
    finally:
        shutil.rmtree(place)
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
