#!/usr/bin/env python3
"""Lets one call of a function of libc fail, each call once, in `minfer quantize`, `generate`,
`inspect --check` and `eval perplexity` on a small model, by the library that tests/faults builds.
With --kill the calls that change files raise SIGKILL in their place.
Every run has to end with a documented exit code other than 1 and by no signal, with one line
"minfer: error:" where it is not 0, with nothing beside its output, with an input that is as it was,
and with an output that is either the old or the new one as a whole, the new one where the code is 0
and the old one where it is not; what a killed run leaves is gone after the next. Exits with 1 where
it is not so."""
import argparse
import concurrent.futures
import errno
import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

# What each function may fail with. EINTR has to be tried again wherever it is met.
FAULTS = {
    "open": [errno.EMFILE, errno.EACCES, errno.EINTR],
    "read": [errno.EIO, errno.EINTR],
    "write": [errno.ENOSPC, errno.EIO, errno.EINTR],
    "fsync": [errno.EIO, errno.EINTR],
    "close": [errno.EIO],
    "flock": [errno.ENOLCK, errno.EWOULDBLOCK, errno.EIO, errno.EINTR, errno.ENOSYS],
    "rename": [errno.EINVAL, errno.EBUSY, errno.ENOSPC],
    "mkdir": [errno.EACCES, errno.ENOSPC],
    "mmap": [errno.ENOMEM],
    "thread": [errno.EAGAIN],
    "malloc": [errno.ENOMEM],
}
# That all calls from the n-th on fail is tried for these, too: a full disk stays full.
LASTING = {"write": [errno.ENOSPC], "fsync": [errno.EIO], "flock": [errno.ENOLCK, errno.EWOULDBLOCK],
           "rename": [errno.EINVAL], "thread": [errno.EAGAIN]}
CODES = {0, 2, 3, 4, 5}
# What a killed run may leave half done.
KILLED_BEFORE = ["open", "write", "fsync", "flock", "rename", "mkdir", "unlink"]
KILL = str(-signal.SIGKILL)


def digests(path):
    """By name; of one file by ''."""
    if not path.exists():
        return {}
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return {
        file.name if path.is_dir() else "": hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
    }


def make_model(root, place):
    """The tests' smallest Llama with a tokenizer of single characters."""
    shutil.copytree(root / "tests/fixtures/models/llama-head64-f16", place)
    place.chmod(0o755)
    (place / "expected.json").unlink()
    pieces = ["<unk>", "<s>", "</s>", "\u2581"] + [chr(c) for c in range(ord("!"), ord(" ") + 64)]
    tokenizer = {"version": "1.0", "added_tokens": [], "pre_tokenizer": None,
                 "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
                 "post_processor": None,
                 "decoder": {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                 "model": {"type": "BPE", "unk_token": "<unk>", "merges": [],
                           "vocab": {piece: i for i, piece in enumerate(pieces)}}}
    (place / "tokenizer.json").write_text(json.dumps(tokenizer))
    (place / "LICENSE").write_text("none")
    return place


class Command:
    """A run of minfer with an output of its own, or none."""

    def __init__(self, name, args, output=None, earlier=None):
        self.name, self.args = name, args
        self.output = output  # its name in the working directory
        self.earlier = earlier  # what lies there before
        self.whole = None

    def place_earlier(self, place):
        if self.earlier is not None:
            copy = shutil.copytree if self.earlier.is_dir() else shutil.copy2
            copy(self.earlier, place / self.output)

    def run(self, minfer, place, environment):
        return subprocess.run([minfer, *self.args], cwd=place, env=environment,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=300)


class Checker:
    def __init__(self, args, place):
        self.args, self.place = args, place
        # A card's driver calls the same functions, and ends the process where memory ends.
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(place),
                            "CUDA_VISIBLE_DEVICES": "", "LD_PRELOAD": str(args.shim.resolve())}
        self.n_runs, self.faults = 0, []

    def run(self, command, **environment):
        """The finished process, what its output has become, and all names beside it."""
        directory = pathlib.Path(tempfile.mkdtemp(prefix="run-", dir=self.place))
        try:
            command.place_earlier(directory)
            result = command.run(self.args.minfer, directory, self.environment | environment)
            output = digests(directory / command.output) if command.output else {}
            return result, output, set(os.listdir(directory))
        finally:
            shutil.rmtree(directory)

    def counts(self, command):
        """Calls of each function, by a run in which none fails."""
        file = self.place / f"counts-{command.name}"
        result, command.whole, names = self.run(command, MINFER_FAULT_COUNTS=str(file))
        if result.returncode != 0 or names - {command.output}:
            sys.exit(f"{command.name}: {result.returncode}, {names}\n{result.stderr.decode()}")
        lines = file.read_text().splitlines()
        return {name: int(count) for name, count in map(str.split, lines)}

    def check_killed(self, command, fault):
        """Both outputs are whole at any moment, and the next run removes what is left."""
        directory = pathlib.Path(tempfile.mkdtemp(prefix="run-", dir=self.place))
        output = directory / command.output
        wrong = []
        try:
            command.place_earlier(directory)
            before = digests(output)
            result = command.run(self.args.minfer, directory,
                                 self.environment | {"MINFER_FAULT": fault})
            if result.returncode != -signal.SIGKILL:
                wrong.append(f"ends with {result.returncode}")
            if digests(output) not in (before, command.whole):
                wrong.append("another output")
            if output.exists() and command.earlier is None:  # written, but not to be replaced
                shutil.rmtree(output) if output.is_dir() else output.unlink()
            again = command.run(self.args.minfer, directory, self.environment)
            if again.returncode != 0 or digests(output) != command.whole:
                wrong.append(f"the next run ends with {again.returncode}, {again.stderr.decode()}")
            if os.listdir(directory) != [command.output]:
                wrong.append(f"the next run leaves {sorted(os.listdir(directory))}")
        finally:
            shutil.rmtree(directory)
        self.tell(command, fault, wrong)
        return result.returncode

    def tell(self, command, fault, wrong):
        self.n_runs += 1
        if wrong:
            self.faults.append(f"{command.name} {fault}")
            print(f"FAULT {command.name} {fault}: {', '.join(wrong)}", flush=True)

    def check(self, command, fault):
        if fault.endswith(KILL):
            return self.check_killed(command, fault)
        result, output, names = self.run(command, MINFER_FAULT=fault)
        code, err = result.returncode, result.stderr.decode(errors="replace")
        lines = [line for line in err.splitlines() if not line.startswith("minfer: warning: ")]
        wrong = []
        if code not in CODES:
            wrong.append(f"ends with {code}")
        if code != 0 and (len(lines) != 1 or not lines[0].startswith("minfer: error: ")):
            wrong.append("not one error line")
        if code == 0 and lines:
            wrong.append("says more than warnings")
        if fault.rstrip("+").endswith(f":{errno.EINTR}") and code != 0:
            wrong.append("EINTR is not tried again")
        if command.output:
            before = digests(command.earlier) if command.earlier else {}
            if output != (command.whole if code == 0 else before):
                wrong.append("another output")
            # What was replaced may stay if it is said so: the next run removes it.
            is_said = code == 0 and "what was replaced could not be removed" in err
            if names - {command.output} and not is_said:
                wrong.append(f"left {sorted(names - {command.output})}")
        if wrong:
            wrong.append(err.strip())
        self.tell(command, fault, wrong)
        return code


def chosen_calls(n_calls, most):
    """All of 1 ... n_calls, or `most` of them with the first and the last."""
    if n_calls <= most:
        return list(range(1, n_calls + 1))
    if most == 1:
        return [n_calls]
    return sorted({1 + i * (n_calls - 1) // (most - 1) for i in range(most)})


def faults_of(counts, command, args):
    if args.kill:
        for name in KILLED_BEFORE if command.output else []:
            yield from (f"{name}:{call}:{KILL}" for call in range(1, counts[name] + 1))
        return
    for name, errors in FAULTS.items():
        if args.function and name not in args.function:
            continue
        most = args.most if name != "malloc" else args.most_mallocs
        if args.few:
            most, errors = (4 if name == "malloc" else 2), errors[:2]
        for call in chosen_calls(counts[name], most):
            yield from (f"{name}:{call}:{error}" for error in errors)
            if not args.few:
                yield from (f"{name}:{call}:{error}+" for error in LASTING.get(name, []))


def make_commands(model, place, minfer):
    def quantized(name, *options):
        subprocess.run([minfer, "quantize", model, place / name, "-q", *options], check=True,
                       stdout=subprocess.DEVNULL)
        return place / name

    text = place / "text"
    text.write_text("THE CAT SAW THE DOG. " * 20)
    packed = quantized("packed", "--group", "32")
    earlier = quantized("earlier", "--type", "int8")
    earlier_gguf = quantized("earlier.gguf", "--gguf", "q8_0")
    quantize = ["quantize", str(model), "--log-level", "warning", "-t", "2"]
    generate = ["generate", "--temp", "0", "-n", "3", "--ignore-eos", "-q", "-t", "2"]
    return [
        Command("quantize", [*quantize, "out", "--group", "32"], "out"),
        Command("replace", [*quantize, "out", "--group", "32", "--force"], "out", earlier),
        Command("gguf", [*quantize, "out.gguf"], "out.gguf"),
        Command("replace-gguf", [*quantize, "out.gguf", "--force"], "out.gguf", earlier_gguf),
        Command("single-file", [*quantize, "out.safetensors"], "out.safetensors"),
        Command("generate", [*generate, "-m", str(model), "THE CAT"]),
        Command("generate-packed", [*generate, "-m", str(packed), "--json", "THE CAT"]),
        Command("inspect", ["inspect", str(packed), "--check", "-q"]),
        Command("eval", ["eval", "perplexity", "-m", str(model), "--text", str(text), "--ctx", "32",
                         "-q", "-t", "2"]),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minfer", default="build/release/tools/minfer")
    parser.add_argument("--shim", type=pathlib.Path,
                        default="build/release/tests/faults/minfer_faults.so")
    parser.add_argument("--few", action="store_true", help="some calls of each function")
    parser.add_argument("--kill", action="store_true", help="SIGKILL in place of an error")
    parser.add_argument("--most", type=int, default=1 << 30, help="calls of a function")
    parser.add_argument("--most-mallocs", type=int, default=1 << 30)
    parser.add_argument("--function", action="append", help="only this one; repeatable")
    parser.add_argument("--command", action="append", help="only this one; repeatable")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    args = parser.parse_args()
    args.minfer = str(pathlib.Path(args.minfer).resolve())
    root = pathlib.Path(__file__).resolve().parent.parent

    place = pathlib.Path(tempfile.mkdtemp(prefix="minfer-faults-"))
    try:
        model = make_model(root, place / "model")
        commands = make_commands(model, place, args.minfer)
        checker = Checker(args, place)
        before = {path: digests(path) for path in (model, place / "packed")}
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            for command in commands:
                if args.command and command.name not in args.command:
                    continue
                counts = checker.counts(command)
                faults = list(faults_of(counts, command, args))
                codes = list(pool.map(lambda fault: checker.check(command, fault), faults))
                ends = ", ".join(f"{codes.count(code)} x {code}" for code in sorted(set(codes)))
                calls = ", ".join(f"{n} {name}" for name, n in counts.items())
                print(f"{command.name}: {len(faults)} runs end with {ends} ({calls})", flush=True)
        if {path: digests(path) for path in before} != before:
            checker.faults.append("an input has changed")
        print(f"{checker.n_runs} runs, {len(checker.faults)} faults")
    finally:
        shutil.rmtree(place)
    sys.exit(bool(checker.faults))


if __name__ == "__main__":
    main()
