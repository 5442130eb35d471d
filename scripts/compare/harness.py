"""How implementations are timed and checked, and the process that runs minfer's kernels."""
import json
import math
import pathlib
import shutil
import statistics
import subprocess
import tempfile
import time

import torch

L2_BYTES = 256e6  # copies of the operands fill several L2 caches, so that none is there when its turn comes


def query_card(fields):
    """Values of nvidia-smi, as numbers where they are; empty where there is none."""
    if shutil.which("nvidia-smi") is None:
        return {}
    done = subprocess.run(["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"],
                          capture_output=True, text=True)
    values = done.stdout.splitlines()[0].split(", ") if done.returncode == 0 and done.stdout else []
    is_number = lambda text: text.replace(".", "", 1).isdigit()
    return {name: float(x) if name != "driver_version" and is_number(x) else x for name, x in zip(fields, values)}


class Timed:
    """An implementation with its operands: sample() gives the microseconds of one launch."""

    def __init__(self, function, sets, n_launches, on_card):
        self.n_launches, self.on_card = n_launches, on_card
        self.function, self.sets = function, sets
        self.extra_bytes = None
        with torch.no_grad():
            if not on_card:
                self.result = function(*sets[0])
                return
            for one in sets:  # compiles, tunes, allocates
                self.result = function(*one)
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                # The results stay, so that each launch writes memory of its own.
                self.kept = [function(*sets[i % len(sets)]) for i in range(n_launches)]
            self.begin, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def measure_memory(self):
        """The bytes that one call allocates beside its result; as a step of its own, since graphs keep theirs."""
        if self.on_card:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            with torch.no_grad():
                result = self.function(*self.sets[0])
            torch.cuda.synchronize()
            parts = result if isinstance(result, tuple) else (result,)
            kept = sum(x.numel() * x.element_size() for x in parts)
            self.extra_bytes = torch.cuda.max_memory_allocated() - before - kept

    def sample(self):
        if self.on_card:
            self.graph.replay()  # uncounted: meanwhile the host enqueues what is counted
            self.begin.record()
            self.graph.replay()
            self.end.record()
            self.end.synchronize()
            return 1e3 * self.begin.elapsed_time(self.end) / self.n_launches
        begin = time.perf_counter()
        with torch.no_grad():
            for i in range(self.n_launches):
                self.function(*self.sets[i % len(self.sets)])
        return 1e6 * (time.perf_counter() - begin) / self.n_launches


class Failed(Exception):
    """An implementation that cannot run here; the text says why."""


class Kernels:
    """The process tests/bench/cuda_compare_bench, which times minfer's kernels on given inputs."""

    def __init__(self, binary):
        self.binary, self.process = binary, None
        self.directory = pathlib.Path(tempfile.mkdtemp(dir="/dev/shm" if pathlib.Path("/dev/shm").is_dir() else None))

    def ask(self, line):
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen([self.binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        text = self.process.stdout.readline()
        answer = json.loads(text) if text else {"error": f"ended with {self.process.wait()}"}
        if "error" in answer:
            self.close()  # an error of the card stays with a process
            raise Failed(answer["error"])
        return answer

    def prepare(self, operation, dims, inputs, outputs, n_sets, n_launches):
        """inputs: tensors, the given rows alone; outputs: (dtype, shape) of each. Sets result and extra_bytes."""
        for i, tensor in enumerate(inputs):
            tensor.detach().contiguous().cpu().numpy().tofile(self.directory / f"in{i}")
        answer = self.ask(f"prepare {operation} {self.directory} {n_sets} {n_launches} " + " ".join(map(str, dims)))
        self.extra_bytes = answer["extra_bytes"]
        results = []
        for i, (dtype, shape) in enumerate(outputs):
            data = bytearray((self.directory / f"out{i}").read_bytes())
            results.append(torch.frombuffer(data, dtype=dtype).reshape(shape))
        self.result = results[0] if len(results) == 1 else tuple(results)
        return self

    def sample(self):
        return self.ask("sample")["us"]

    def close(self):
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()
            self.process = None

    def remove(self):
        self.close()
        shutil.rmtree(self.directory)


class Table:
    """The rows of the comparison, and what they are held against."""

    def __init__(self, limits, on_card, n_rounds, log):
        self.limits, self.on_card, self.n_rounds, self.log = limits, on_card, n_rounds, log
        self.rows = []

    def limit_of(self, bound, n_bytes, n_flops):
        """(name, seconds of the work at the limit) of what bounds it: read, copy or hgemm, the larger of the last two."""
        seconds = {"hgemm": n_flops / self.limits["hgemm"]} if n_flops and self.limits.get("hgemm") else {}
        seconds[bound] = n_bytes / self.limits[bound]
        name = max(seconds, key=seconds.get)
        return name, seconds[name]

    def sets_and_launches(self, n_bytes, seconds):
        """Copies of the operands, and launches of a graph, of about 3 ms in all."""
        n_sets = min(16, 1 + math.ceil(L2_BYTES / n_bytes)) if self.on_card else 1
        n_launches = n_sets * math.ceil(min(64, max(1, 3e-3 / seconds)) / n_sets)
        return n_sets, n_launches if self.on_card else 2

    def measure(self, implementations):
        """Samples of each, in turns; the first round warms up."""
        samples = {name: [] for name in implementations}
        for i in range(self.n_rounds + 1):
            for name, implementation in implementations.items():
                us = implementation.sample()
                if i > 0:
                    samples[name].append(us)
        return samples

    def add(self, operation, shape, samples, bound, n_bytes, n_flops, errors=None, memory=None):
        """Rows of one operation and shape; errors: largest error over its bound."""
        limit, seconds = self.limit_of(bound, n_bytes, n_flops)
        card = query_card(("clocks.sm", "power.draw"))
        medians = {name: statistics.median(us) for name, us in samples.items()}
        for name, us in samples.items():
            row = {
                "operation": operation, "shape": shape, "implementation": name,
                "us": medians[name], "us_low": min(us), "us_high": max(us), "samples": len(us),
                "gb_per_s": n_bytes / medians[name] / 1e3, "tflops": n_flops / medians[name] / 1e6,
                "flop_per_byte": n_flops / n_bytes, "limit": limit, "us_at_limit": 1e6 * seconds, "limit_share": 1e6 * seconds / medians[name],
                "over_eager": medians["eager"] / medians[name] if "eager" in medians else None,
                "error_of_bound": (errors or {}).get(name), "extra_mb": (memory or {}).get(name),
                "sm_mhz": card.get("clocks.sm"), "watts": card.get("power.draw"),
            }
            self.rows.append(row)
            error = "" if row["error_of_bound"] is None else f", error {row['error_of_bound']:.2f} of its bound"
            self.log(f"{operation} {shape} {name}: {row['us']:.1f} us ({row['us_low']:.1f} to {row['us_high']:.1f}), "
                     f"{row['limit_share']:.0%} of {limit}{error}")
