#!/usr/bin/env python3
"""What scripts/make_random_gguf.py writes is a model that runs, and compare_gguf_types.py compares such files:
random_gguf_test.py MINFER"""
import csv
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/make_random_gguf.py"
COMPARE = SCRIPT.with_name("compare_gguf_types.py")
VOCAB = 1000
SIZES = {"--layers": 2, "--hidden": 256, "--heads": 4, "--kv-heads": 2, "--head-dim": 64, "--experts": 8,
         "--used-experts": 3, "--expert-ffn": 96, "--vocab": VOCAB}
DENSE_SIZES = {"--layers": 8, "--hidden": 256, "--heads": 4, "--kv-heads": 2, "--head-dim": 64, "--ffn": 512,
               "--vocab": VOCAB}


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

    def types_of(self, *args):
        return {name: of["n_tensors"] for name, of in self.check(*args)["types"].items()}

    def check_experts(self, shape, family, n_tensors):
        config = self.check(shape, family, n_tensors)["config"]
        self.assertEqual((config["n_layers"], config["ffn_dim"], config["n_experts"], config["n_active_experts"]),
                         (2, 96, 8, 3))

    def test_qwen3_moe(self):
        self.check_experts("qwen3-30b-a3b", "qwen3moe", 3 + 2 * 12)

    def test_mixtral(self):
        self.check_experts("mixtral-8x7b", "llama", 3 + 2 * 10)

    def test_mxfp4_experts(self):
        n_of = self.types_of("qwen3-30b-a3b", "qwen3moe", 3 + 2 * 12, SIZES, "mxfp4_moe")
        self.assertEqual(n_of, {"F32": 1 + 2 * 5, "MXFP4": 2 * 3, "Q8_0": 2 + 2 * 4})

    def test_mix_of_eight_experts(self):
        n_of = self.types_of("mixtral-8x7b", "llama", 3 + 2 * 10, {**SIZES, "--expert-ffn": 256}, "q4_k_m")
        # Down of layer 1 and the output are Q6_K, k and v Q8_0, wo Q5_K.
        self.assertEqual(n_of, {"F32": 1 + 2 * 3, "Q4_K": 8, "Q5_K": 2, "Q6_K": 2, "Q8_0": 4})

    def test_comparison(self):
        """With minfer in llama-bench's place, whose options and rows it has."""
        with tempfile.TemporaryDirectory() as directory:
            peer, out = pathlib.Path(directory) / "peer", pathlib.Path(directory) / "out.csv"
            peer.write_text(f'#!/bin/sh\nexec "{pathlib.Path(sys.argv[1]).resolve()}" bench --device cpu "$@"\n')
            peer.chmod(0o755)
            make = " ".join(str(word) for pair in DENSE_SIZES.items() for word in pair)
            subprocess.run([sys.executable, COMPARE, "--minfer", sys.argv[1], "--llama-bench", peer, "--device", "cpu",
                            "--make", make, "--types", "q4_0,q6_k", "--prompt", "16", "--gen", "4", "--depth", "8",
                            "--repetitions", "1", "--turns", "2", "--out", out], check=True, capture_output=True)
            written = out.read_text().splitlines()
        self.assertRegex(written[0], r"^# .*\(llama\.cpp .+\); both behind 8 tokens$")
        rows = list(csv.DictReader(line for line in written if not line.startswith("#")))
        self.assertEqual([(row["type"], row["test"]) for row in rows],
                         [(of, test) for of in ("q4_0", "q6_k") for test in ("pp16", "tg4")])
        for row in rows:
            self.assertAlmostEqual(float(row["ratio"]), float(row["minfer"]) / float(row["llama_cpp"]), delta=0.01)

    def test_types(self):
        for file_type in ("q4_1", "q5_1", "q8_0", "iq4_nl", "iq4_xs", "q4_k_m", "q5_k_m"):  # with q4_k, q5_k and q6_k in the mixes
            with self.subTest(file_type):
                n_of = self.types_of("llama-2-7b", "llama", 3 + 8 * 9, DENSE_SIZES, file_type)
                # Of the mixes: of 8 layers 0, 3, 6 and 7, and the output.
                base = file_type.upper().removesuffix("_M")
                expected = {base: 58 - 9, "Q6_K": 9} if file_type.endswith("_m") else {base: 58}
                self.assertEqual(n_of, {"F32": 17, **expected})


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
