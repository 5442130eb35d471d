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
    def check(self, shape, family, n_tensors, sizes=SIZES, file_type="q4_0"):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "model.gguf"
            words = [str(word) for pair in sizes.items() for word in pair]
            subprocess.run([sys.executable, SCRIPT, "--shape", shape, "--type", file_type, *words, path], check=True,
                           capture_output=True)
            inspected = minfer("inspect", "--check", path)
            evaluated = minfer("eval", "perplexity", "-m", path, "--text", SCRIPT, "--ctx", "128", "--windows", "8")
        self.assertEqual((inspected["architecture"], inspected["n_tensors"]), (family, n_tensors))
        # Behind a norm, logits are normal with the output's variance times `hidden`: 1/2 to 2, since its scales are powers
        # of 2. With variance v, an unlearned token costs log(VOCAB) + v / 2 nats; 0.1 is for the mean of 500 tokens.
        nats = math.log(evaluated["perplexity"] / VOCAB)
        self.assertTrue(0.25 - 0.1 < nats < 1 + 0.1, nats)
        return inspected

    def check_experts(self, shape, family, n_tensors):
        config = self.check(shape, family, n_tensors)["config"]
        self.assertEqual((config["n_layers"], config["ffn_dim"], config["n_experts"], config["n_active_experts"]),
                         (2, 96, 8, 3))

    def test_qwen3_moe(self):
        self.check_experts("qwen3-30b-a3b", "qwen3moe", 3 + 2 * 12)

    def test_mixtral(self):
        self.check_experts("mixtral-8x7b", "llama", 3 + 2 * 10)

    def test_types(self):
        sizes = {"--layers": 8, "--hidden": 256, "--heads": 4, "--kv-heads": 2, "--head-dim": 64, "--ffn": 512,
                 "--vocab": VOCAB}
        for file_type in ("q4_0", "q4_1", "q8_0", "q4_k", "q5_k", "q6_k", "q4_k_m"):
            with self.subTest(file_type):
                types = self.check("llama-2-7b", "llama", 3 + 8 * 9, sizes, file_type)["types"]
                n_of = {name: of["n_tensors"] for name, of in types.items()}
                # Q4_K_M: of 8 layers 0, 3, 6 and 7, and the output.
                expected = {"Q4_K": 58 - 9, "Q6_K": 9} if file_type == "q4_k_m" else {file_type.upper(): 58}
                self.assertEqual(n_of, {"F32": 17, **expected})


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
