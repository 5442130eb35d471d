#!/usr/bin/env python3
"""What scripts/make_random_gguf.py writes is a model that runs: random_gguf_test.py MINFER"""
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/make_random_gguf.py"
VOCAB = 1000
SIZES = {"--layers": 2, "--hidden": 256, "--heads": 4, "--kv-heads": 2, "--head-dim": 64, "--experts": 8,
         "--used-experts": 3, "--expert-ffn": 96, "--vocab": VOCAB}


def minfer(*args):
    run = subprocess.run([sys.argv[1], *args, "--quiet", "--json"], check=True, capture_output=True, text=True)
    return json.loads(run.stdout)


class RandomGguf(unittest.TestCase):
    def check(self, shape, family, n_tensors):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "model.gguf"
            sizes = [str(word) for pair in SIZES.items() for word in pair]
            subprocess.run([sys.executable, SCRIPT, "--shape", shape, *sizes, path], check=True, capture_output=True)
            inspected = minfer("inspect", "--check", path)
            evaluated = minfer("eval", "perplexity", "-m", path, "--text", SCRIPT, "--ctx", "128", "--windows", "8")
        self.assertEqual((inspected["architecture"], inspected["n_tensors"]), (family, n_tensors))
        config = inspected["config"]
        self.assertEqual((config["n_layers"], config["ffn_dim"], config["n_experts"], config["n_active_experts"]),
                         (2, 96, 8, 3))
        # Behind a norm, logits are normal with the output's variance times `hidden`: 1/2 to 2, since its scales are powers
        # of 2. With variance v, an unlearned token costs log(VOCAB) + v / 2 nats; 0.1 is for the mean of 500 tokens.
        nats = math.log(evaluated["perplexity"] / VOCAB)
        self.assertTrue(0.25 - 0.1 < nats < 1 + 0.1, nats)

    def test_qwen3_moe(self):
        self.check("qwen3-30b-a3b", "qwen3moe", 3 + 2 * 12)

    def test_mixtral(self):
        self.check("mixtral-8x7b", "llama", 3 + 2 * 10)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
