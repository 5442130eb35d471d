#!/usr/bin/env python3
"""Ends `minfer quantize` by INT, TERM, HUP and KILL at moments spread evenly over its run time, and
checks after each that the input is as it was and that what has the output's name is whole. The first
three leave nothing else behind and end with 128 and the signal's number; what KILL has left is gone
after the next run. Exits with 1 where it is not so."""
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


def end_after(args, output, delay, number):
    """By a signal, seconds after the start. Returns the exit code and whether any output had been
    written by then."""
    process = subprocess.Popen(command(args, output), stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    time.sleep(delay)
    wrote = bytes_written(output.parent, output) > 0 or output.exists()
    process.send_signal(number)
    return process.wait(), wrote


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=pathlib.Path, help="directory that takes >= 2 s to quantize")
    parser.add_argument("--minfer", default="build/release/tools/minfer")
    parser.add_argument("--kills", type=int, default=200, help="of each signal")
    parser.add_argument("--signals", nargs="+", default=["INT", "TERM", "HUP", "KILL"])
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
        for name in args.signals:
            number = signal.Signals[f"SIG{name}"]
            n_writing = n_finished = 0
            for i in range(args.kills):
                code, wrote = end_after(args, output, seconds * (i + 0.5) / args.kills, number)
                n_writing += wrote
                what = f"{name} {i}"
                require(digests(args.model) == before, f"{what}: the input has changed")
                # Before main has begun, or by KILL, the signal itself ends the process.
                require(code in (0, 128 + number, -number), f"{what}: ends with {code}")
                require(code != -number or number == signal.SIGKILL or not wrote,
                        f"{what}: the signal was not handled")
                require(output.exists() == (code == 0) or number == signal.SIGKILL,
                        f"{what}: ends with {code}, output {'is' if output.exists() else 'is not'} there")
                if output.exists():
                    n_finished += 1
                    require(digests(output) == whole, f"{what}: the output is damaged")
                    shutil.rmtree(output)
                left = [item for item in os.listdir(place) if item != "reference"]
                if number == signal.SIGKILL:
                    require(len(left) <= 1, f"{what}: debris of earlier runs is still there")
                    left = [item for item in left if not item.startswith(".out.minfer-")]
                require(not left, f"{what}: left {left}")
            print(f"{name}: {args.kills} runs, {n_writing} ended after the first output byte, "
                  f"{n_finished} after the last", flush=True)
        run_whole(args, output)
        require(digests(output) == whole, "the last run: another output")
        require(sorted(os.listdir(place)) == ["out", "reference"], "the last run: debris is left")
        print(f"{len(faults)} faults")
    finally:
        shutil.rmtree(place)
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
