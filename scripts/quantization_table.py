#!/usr/bin/env python3
"""Quantizes models in every way that minfer knows and measures what each way costs.

    scripts/quantization_table.py --minfer build/release/tools/minfer --calibration TEXT \\
        [--llama-quantize PATH] [--windows N] [--text FILE] [--work DIR] [NAME=]MODEL ...

Each MODEL is a Hugging Face directory in a float type; it is the reference of its table. Writes
docs/benchmarks/quantization.json (every figure and command) and quantization.md (the tables).
--llama-quantize is llama.cpp's tool: its types are made from minfer's f16 GGUF and evaluated by
minfer. Needs the Python packages numpy and gguf for their weights' errors.

It takes about 40 minutes of two cores for a model of 8 million weights. With --work DIR what every
command made and printed is kept there, and a run that was stopped goes on where it was; another
version of minfer needs another DIR. --jobs runs several commands at a time (set MINFER_THREADS).
"""
import argparse
import concurrent.futures
import datetime
import hashlib
import json
import math
import os
import pathlib
import platform
import tempfile

from run_command import run

GROUPS = (32, 64, 128)
METHODS = ("rtn", "rtn16", "mse", "asymmetric mse", "gptq")
LLAMA_TYPES = ("Q8_0", "Q4_K_M", "Q4_0")
DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs" / "benchmarks"

HEAD = """\
# Quantization, measured

For those who choose how to quantize a model: what fewer bits cost, for each method of `minfer quantize` and for types of
llama.cpp.

- **Perplexity** is that of WikiText-2 by the convention `llamacpp`, in windows of 512 tokens. The KV cache is f16.
- **NLL difference**, **KL divergence** and **same top** compare with the model as it was trained, on the same tokens. The first
  is the paired difference of the mean negative log-likelihood with its standard error, the last the share of predictions with the
  same most probable token.
- **Activations** are float unless the line says otherwise. The model compared with always has float activations.
- **Bits** are bits per weight of the linear layers, scales included. **Size** is that of all tensors. **Error** is the relative
  RMS error of a linear layer, whose square is averaged over all weights.
- minfer leaves a tied embedding in its own type. llama.cpp gives it another type unless told not to, so its types are listed both
  ways. Its files are made from minfer's f16 GGUF and evaluated by minfer, so the arithmetic is the same for all lines.

A second table under each model lists what is expected of the methods and whether it holds. llama.cpp's Q4_K_M is compared in its
default form there. It takes larger types for matrices whose rows are not a multiple of 256 long, so in a small model it has many
more bits than its name says. If a model is bad at the text (a perplexity in the hundreds), noise in the weights may lower its
perplexity, and only the KL divergence puts the methods in order.

`scripts/quantization_table.py` makes this page. Every figure and command is in [quantization.json](quantization.json).
"""



def is_linear(name, shape):
    return name.startswith(("model.layers.", "blk.")) and len(shape) == 2


def mean_error(errors):
    """Of [(weights, relative RMS)], the root of the mean square over the weights."""
    weights = sum(n for n, _ in errors)
    return math.sqrt(sum(n * error**2 for n, error in errors) / weights)


def error_of_directory(path):
    report = json.loads((path / "minfer_quant_report.json").read_text())
    return mean_error([(t["n_weights"], t["relative_rms"]) for t in report["tensors"]
                       if t["name"].startswith("model.layers.") and t["type_before"] != t["type"]])


def error_of_gguf(path, original):
    import gguf
    import numpy as np

    def matrices(file):
        return {t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float64)
                for t in gguf.GGUFReader(file).tensors if is_linear(t.name, t.shape)}
    ours, reference = matrices(path), matrices(original)
    return mean_error([(w.size, math.sqrt(np.square(ours[name] - w).sum() / np.square(w).sum()))
                       for name, w in reference.items()])


class Table:
    """One model in every form; rows are made first and then evaluated some at a time."""

    def __init__(self, args, name, model, work):
        self.args, self.name, self.model, self.work = args, name, model, work
        self.work.mkdir(parents=True, exist_ok=True)
        self.rows = []
        self.commands = []

    def named(self, command):
        """The command line without the places of this machine."""
        names = {self.args.calibration: "CALIBRATION", str(self.model): self.name,
                 str(self.work): "OUT"}
        line = " ".join([os.path.basename(command[0])] + [str(part) for part in command[1:]])
        for path, name in names.items():
            line = line.replace(path, name) if path else line
        return line

    def run_once(self, command):
        """What a command prints, or printed when it ran to its end before."""
        line = self.named(command)
        kept = self.work / f"{hashlib.sha256(line.encode()).hexdigest()[:16]}.json"
        if kept.exists():
            return json.loads(kept.read_text())["output"]
        output = run(command)
        part = kept.with_suffix(".part")
        part.write_text(json.dumps({"command": line, "output": output}))
        part.rename(kept)
        return output

    def run_all(self, commands):
        self.commands += map(self.named, commands)
        with concurrent.futures.ThreadPoolExecutor(self.args.jobs) as pool:
            return list(pool.map(self.run_once, commands))

    def add_row(self, name, path, error):
        info = json.loads(run([self.args.minfer, "inspect", "--json", path]))
        linear = [t for t in info["tensors"] if is_linear(t["name"], t["shape"])]
        self.rows.append({
            "name": name, "path": str(path), "activations": "float", "error": error,
            "bits": 8 * sum(t["bytes"] for t in linear) / sum(math.prod(t["shape"]) for t in linear),
            "bytes": info["bytes"]})

    def make(self):
        original = self.work / "f16.gguf"
        self.run_all([[self.args.minfer, "quantize", "-q", "--force", "--gguf", "f16", self.model,
                       original]])
        ours = {"int8 row": ["--type", "int8"], "int8 g128": ["--type", "int8", "--group", 128]}
        for group in GROUPS:
            for method in self.args.methods:
                options = ["--type", "int4", "--group", group, "--method", method.split()[-1]]
                if method.startswith("asymmetric"):
                    options.append("--asymmetric")
                if method == "gptq":
                    options += ["--calibration", self.args.calibration]
                ours[f"int4 g{group} {method}"] = options
        theirs = {}
        for kind in LLAMA_TYPES if self.args.llama_quantize else ():
            theirs[f"llama.cpp {kind}"] = (kind, [])
            theirs[f"llama.cpp {kind}, f16 embedding"] = (kind, ["--token-embedding-type", "f16"])

        our_paths = {name: self.work / name.replace(" ", "-") for name in ours}
        their_paths = {name: self.work / (name.replace(" ", "-").replace(",", "") + ".gguf")
                       for name in theirs}
        self.run_all([[self.args.minfer, "quantize", "-q", "--force", *options, self.model,
                       our_paths[name]] for name, options in ours.items()] +
                     [[self.args.llama_quantize, *options, original, their_paths[name], kind]
                      for name, (kind, options) in theirs.items()])
        self.add_row("f16", original, 0)
        for name, path in our_paths.items():
            self.add_row(name, path, error_of_directory(path))
        for name, path in their_paths.items():
            self.add_row(name, path, error_of_gguf(path, original))

    def evaluate(self):
        """Fills every row, adds those with quantized activations, and compares methods in pairs."""
        chosen = ["f16", "int8 row"] + [f"int4 g64 {m}" for m in ("mse", "gptq")
                                        if m in self.args.methods]
        self.rows += [dict(row, activations=activations) for activations in ("int8", "int8-asym")
                      for row in self.rows if row["name"] in chosen]
        batches = []
        for activations in ("float", "int8", "int8-asym"):
            rows = [row for row in self.rows if row["activations"] == activations]
            batches += [rows[i:i + self.args.at_once]
                        for i in range(0, len(rows), self.args.at_once)]
        paths = {row["name"]: row["path"] for row in self.rows}
        pairs = [(f"int4 g{g} gptq", f"int4 g{g} mse")
                 for g in GROUPS if {"gptq", "mse"} <= set(self.args.methods)]
        outputs = self.run_all(
            [self.evaluation([row["path"] for row in rows], self.model, rows[0]["activations"])
             for rows in batches] +
            [self.evaluation([paths[better]], paths[worse], "float") for better, worse in pairs])
        results = [json.loads(output) for output in outputs]
        for rows, result in zip(batches, results):
            for row, one in zip(rows, result.get("results", [result])):
                self.fill(row, one)
        self.pairs = [{"model": better, "against": worse,
                       **{key: result["against"][key]
                          for key in ("nll_difference", "nll_difference_stderr")}}
                      for (better, worse), result in zip(pairs, results[len(batches):])]

    def evaluation(self, paths, against, activations):
        tokenizers = [self.model / name for name in ("tokenizer.model", "tokenizer.json")]
        command = [self.args.minfer, "eval", "perplexity", "--json", "-q",
                   "--convention", "llamacpp", "--text", self.args.text, "--against", against,
                   "--activations", activations,
                   "--tokenizer", next(path for path in tokenizers if path.exists())]
        if self.args.windows:
            command += ["--windows", self.args.windows]
        for path in paths:
            command += ["-m", path]
        return command

    def fill(self, row, result):
        row["perplexity"] = result["perplexity"]
        row["recipe"] = result["recipe"]
        row.update({key: result["against"][key] for key in (
            "nll_difference", "nll_difference_stderr", "kl_divergence", "kl_divergence_stderr",
            "same_top")})
        self.reference = {key: result["against"][key] for key in ("perplexity", "mean_nll")}

    def expectations(self):
        """(what is expected, the figure, its bound) of each order that should hold."""
        row = {row["name"]: row for row in self.rows if row["activations"] == "float"}
        rise = {name: r["nll_difference"] for name, r in row.items()}
        divergence = {name: r["kl_divergence"] for name, r in row.items()}
        for name in ("int8 row", "int8 g128"):
            yield f"{name}: NLL within 0.001 of f16", abs(rise[name]), 0.001
        for g in GROUPS:
            if {"rtn", "rtn16", "mse"} <= set(self.args.methods):
                yield (f"g{g}: rise of the NLL of mse at most 0.75 of rtn's",
                       rise[f"int4 g{g} mse"], 0.75 * rise[f"int4 g{g} rtn"])
                yield (f"g{g}: rise of the NLL of mse below rtn16's",
                       rise[f"int4 g{g} mse"], rise[f"int4 g{g} rtn16"])
        for pair in self.pairs:
            yield (f"{pair['model']} below {pair['against'].split()[-1]} by more than two paired "
                   "errors: NLL difference", pair["nll_difference"],
                   -2 * pair["nll_difference_stderr"])
        for ours, theirs in (("int4 g64 gptq", "llama.cpp Q4_0"),
                             ("int4 g32 gptq", "llama.cpp Q4_K_M")):
            if ours in row and theirs in row:
                yield (f"KL divergence of {ours} not above {theirs}'s", divergence[ours],
                       divergence[theirs])

    def lines(self):
        def figures(queries):  # for scripts/check_figures.py
            return f"<!-- figures quantization.json: {queries} -->"

        yield f"## {self.name}"
        yield ""
        yield figures(f"{self.name}:reference.perplexity")
        yield (f"As trained: perplexity {self.reference['perplexity']:.4f} "
               f"(`{self.rows[0]['recipe']}`).")
        yield ""
        yield figures(f"{self.name}/rows.{{0..{len(self.rows) - 1}}}:{{bits,bytes / 1e6,100 * error,perplexity,"
                      "nll_difference,nll_difference_stderr,kl_divergence,kl_divergence_stderr,100 * same_top}")
        yield ("| | activations | bits | size, MB | error, % | perplexity | NLL difference "
               "| KL divergence | same top, % |")
        yield "|---|---|---|---|---|---|---|---|---|"
        for row in self.rows:
            yield (f"| {row['name']} | {row['activations']} | {row['bits']:.2f} "
                   f"| {row['bytes'] / 1e6:.2f} | {100 * row['error']:.2f} "
                   f"| {row['perplexity']:.4f} "
                   f"| {row['nll_difference']:+.5f} ± {row['nll_difference_stderr']:.5f} "
                   f"| {row['kl_divergence']:.5f} ± {row['kl_divergence_stderr']:.5f} "
                   f"| {100 * row['same_top']:.2f} |")
        for pair in self.pairs:
            yield ""
            yield figures(f"{self.name}/model={pair['model']}/against={pair['against']}:"
                          "{nll_difference,nll_difference_stderr}")
            yield (f"{pair['model']} against {pair['against']}: NLL difference "
                   f"{pair['nll_difference']:+.5f} ± {pair['nll_difference_stderr']:.5f}.")
        yield ""
        expected = list(self.expectations())
        yield figures(f"{self.name}/expectations.{{0..{len(expected) - 1}}}:{{figure,bound}}")
        yield "| expected | figure | bound | |"
        yield "|---|---|---|---|"
        for what, figure, bound in expected:
            yield (f"| {what} | {figure:+.5f} | {bound:+.5f} "
                   f"| {'holds' if figure <= bound else '**does not hold**'} |")

    def record(self):
        rows = [{key: value for key, value in row.items() if key != "path"} for row in self.rows]
        return {"model": self.name, "reference": self.reference, "rows": rows,
                "pairs": self.pairs,
                "expectations": [{"expected": what, "figure": figure, "bound": bound,
                                  "holds": figure <= bound}
                                 for what, figure, bound in self.expectations()],
                "commands": self.commands}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minfer", required=True)
    parser.add_argument("--calibration", help="text for gptq; not the one that is evaluated")
    parser.add_argument("--llama-quantize")
    parser.add_argument("--text", default="wikitext2")
    parser.add_argument("--windows", type=int, default=0, help="the first N alone; 0: all")
    parser.add_argument("--methods", type=lambda text: text.split(","), default=list(METHODS),
                        help="of " + ",".join(METHODS))
    parser.add_argument("--out", type=pathlib.Path, default=DOCS)
    parser.add_argument("--work", type=pathlib.Path, help="keep what is done there, and go on")
    parser.add_argument("--jobs", type=int, default=1, help="commands at a time")
    parser.add_argument("--at-once", type=int, default=4, help="rows that one command evaluates")
    parser.add_argument("models", nargs="+", metavar="[NAME=]MODEL")
    args = parser.parse_args()
    if "gptq" in args.methods and not args.calibration:
        parser.error("gptq needs --calibration")

    with tempfile.TemporaryDirectory() as temporary:
        tables = []
        for model in args.models:
            path = pathlib.Path(model.split("=")[-1]).resolve()
            name = model.split("=")[0] if "=" in model else path.name
            tables.append(Table(args, name, path, (args.work or pathlib.Path(temporary)) / name))
            tables[-1].make()
            tables[-1].evaluate()
    record = {"date": datetime.date.today().isoformat(), "machine": platform.machine(),
              "version": run([args.minfer, "--version"]).strip(),
              "tables": [table.record() for table in tables]}
    (args.out / "quantization.json").write_text(json.dumps(record, indent=1) + "\n")
    page = HEAD + "".join("\n" + "\n".join(table.lines()) + "\n" for table in tables)
    (args.out / "quantization.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
