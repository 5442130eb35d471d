#!/usr/bin/env python3
"""Kills or stops one rank of a run of several MPI processes at a random moment, again and again, and
says how long the run takes to end, with which exit status, and what it leaves behind.

usage: scripts/stop_ranks.py [--runs N] [--ranks N] [--seed S] [--minfer build/release/tools/minfer]

A rank that is killed (SIGKILL) or stopped (SIGSTOP) has to end the whole run within 5 s: no process,
no shared memory and no directory of mpirun's may stay. Exits with 1 if one run did otherwise."""
import argparse
import collections
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MOST_SECONDS = 5.0
EXPECTED = {signal.SIGSTOP: 7, signal.SIGKILL: 128 + signal.SIGKILL}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--minfer", default=str(ROOT / "build/release/tools/minfer"))
    return parser.parse_args()


def ranks_of(mpirun):
    """The processes that mpirun has started, by rank, and the number of their job."""
    found, job = {}, 0
    for task in pathlib.Path(f"/proc/{mpirun.pid}/task").glob("*/children"):
        for pid in task.read_text().split():
            try:
                environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            for variable in environment:
                if variable.startswith(b"OMPI_COMM_WORLD_RANK="):
                    found[int(variable.split(b"=")[1])] = int(pid)
                if variable.startswith(b"OMPI_MCA_ess_base_jobid="):
                    job = int(variable.split(b"=")[1])
    return found, job


def is_alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def shared_memory(job):
    """What Open MPI has made for a job: vader_segment.HOST.USER.JOB.RANK."""
    return [str(p) for p in pathlib.Path("/dev/shm").glob(f"vader_segment.*.{job:x}.*")]


def end(mpirun, pids):
    """Ends what still runs."""
    if mpirun.poll() is not None:
        return
    mpirun.terminate()  # it ends the ranks
    try:
        mpirun.wait(timeout=5)
    except subprocess.TimeoutExpired:
        mpirun.kill()
        mpirun.wait()
    for pid in pids:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)


def one_run(options, draw):
    """Returns (signal, moment, rank, seconds to the end, exit status, what is left, stderr)."""
    number = draw.choice([signal.SIGKILL, signal.SIGSTOP])
    moment = draw.uniform(0, 2.5)
    rank = draw.randrange(options.ranks)
    # A short name: it becomes part of the paths of unix sockets, whose length is limited.
    with tempfile.TemporaryDirectory(prefix="mr") as directory, open(
            os.path.join(directory, "err"), "w+") as errors:
        session = os.path.join(directory, "s")
        os.mkdir(session)
        command = [str(ROOT / "tests/mpi/mpirun.sh"), "-n", str(options.ranks), options.minfer,
                   "bench", "-m", str(ROOT / "models/demo"), "--device", "cpu", "--tp", "mpi",
                   "-p", "64", "-n", "64", "-r", "10000", "-q"]
        pids, job = {}, 0
        mpirun = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=errors, env=os.environ | {"TMPDIR": session})
        try:
            started = time.monotonic()
            while len(pids) < options.ranks:
                if time.monotonic() - started > 10:
                    raise SystemExit("the ranks have not started")
                time.sleep(0.005)
                pids, job = ranks_of(mpirun)
            time.sleep(moment)
            os.kill(pids[rank], number)
            sent = time.monotonic()
            try:
                status = mpirun.wait(timeout=20)
            except subprocess.TimeoutExpired:
                status = None
            # mpirun does not wait for the processes that it has killed.
            while any(map(is_alive, pids.values())) and time.monotonic() - sent < MOST_SECONDS:
                time.sleep(0.005)
            seconds = time.monotonic() - sent
            left = [f"process {pid}" for pid in pids.values() if is_alive(pid)]
            left += shared_memory(job) + [str(p) for p in pathlib.Path(session).rglob("*")]
        finally:
            end(mpirun, pids.values())
        errors.seek(0)
        return number, moment, rank, seconds, status, left, errors.read()


def main():
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    draw = random.Random(seed)
    endings, slowest, n_bad = collections.Counter(), collections.Counter(), 0
    for i in range(options.runs):
        number, moment, rank, seconds, status, left, errors = one_run(options, draw)
        name = signal.Signals(number).name
        endings[name, status] += 1
        slowest[name] = max(slowest[name], seconds)
        # With SIGKILL, mpirun itself names the rank.
        lines = [line for line in errors.splitlines() if line.startswith("minfer: error:")]
        is_bad = seconds > MOST_SECONDS or status != EXPECTED[number] or left
        if number == signal.SIGSTOP and not lines:
            is_bad = True
        n_bad += bool(is_bad)
        if is_bad or options.runs <= 10:
            print(f"run {i}: {name} to rank {rank} after {moment:.2f} s: status {status} after "
                  f"{seconds:.2f} s; left: {', '.join(left) or 'nothing'}; {' / '.join(lines)}",
                  flush=True)
    for (name, status), count in sorted(endings.items(), key=str):
        print(f"{name}: {count} ended with status {status}")
    for name, seconds in sorted(slowest.items()):
        print(f"{name}: the slowest took {seconds:.2f} s")
    print(f"{n_bad} of {options.runs} runs ended late, with another status or left something")
    return n_bad > 0


if __name__ == "__main__":
    sys.exit(main())
