#!/usr/bin/env python3
"""Prefill of Llama-2-7B's shape in FP16 by minfer and by torch.compile, in turns on one card.

Cards throttle, so only figures of the same minutes compare: each turn rests for four seconds, then
the peer runs three times uncounted and twenty times counted, and minfer, which makes its weights
first, as often. Prints one JSON
object: for each length and turn the tokens/s of both and the ratio of their means and medians, and
the ratio over all turns. PEER is a Python file with `Model(kind, n_positions)`, a torch.nn.Module in
the manner of gpt-fast that maps tokens [1, n] and positions [n] to logits, and `V`, its vocabulary.

  scripts/prefill_in_turns.py --minfer build/release/tools/minfer --peer PEER --turns 4096:6 2048:5
"""
import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import time

import torch

WARM_UP, COUNTED, REST_SECONDS = 3, 20, 4


def load_peer(path):
    spec = importlib.util.spec_from_file_location("peer", path)
    peer = importlib.util.module_from_spec(spec)
    sys.modules["peer"] = peer  # where torch.compile looks for what it compiles
    spec.loader.exec_module(peer)
    return peer


class Peer:
    """torch.compile's program for prompts of one length."""

    def __init__(self, model, vocab_size, n_tokens):
        torch._dynamo.reset()
        self.n_tokens = n_tokens
        self.tokens = torch.randint(0, vocab_size, (1, n_tokens), device="cuda")
        self.positions = torch.arange(n_tokens, device="cuda")
        self.prefill = torch.compile(lambda tokens, positions: model(tokens, positions),
                                     fullgraph=True, dynamic=False)

    def run(self):
        self.prefill(self.tokens, self.positions)

    def rates(self):
        for _ in range(WARM_UP):
            self.run()
        torch.cuda.synchronize()
        rates = []
        for _ in range(COUNTED):
            begin = time.perf_counter()
            self.run()
            torch.cuda.synchronize()
            rates.append(self.n_tokens / (time.perf_counter() - begin))
        return rates


def minfer_rates(minfer, n_tokens):
    # `bench` itself runs once before it counts.
    besides = WARM_UP - 1
    command = [minfer, "bench", "--synthetic", "llama-2-7b:f16", "-p", str(n_tokens), "-n", "0",
               "-r", str(COUNTED + besides), "--json", "-q"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)["results"][0]["samples_ts"][besides:]


def ratios(ours, theirs):
    """Of means, of medians, and of tokens over time."""
    ways = {"means": statistics.mean, "medians": statistics.median,
            "over_time": statistics.harmonic_mean}
    return {name: round(way(ours) / way(theirs), 4) for name, way in ways.items()}


def length_and_turns(text):
    n_tokens, _, turns = text.partition(":")
    return int(n_tokens), int(turns or 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minfer", required=True)
    parser.add_argument("--peer", required=True, metavar="PEER")
    parser.add_argument("--turns", nargs="+", type=length_and_turns, metavar="TOKENS:TURNS",
                        default=[(4096, 3)])
    options = parser.parse_args()
    peer = load_peer(options.peer)
    results = []
    with torch.no_grad():
        model = peer.Model("fp16", max(n_tokens for n_tokens, _ in options.turns)).eval()
        for n_tokens, n_turns in options.turns:
            compiled = Peer(model, peer.V, n_tokens)
            for _ in range(WARM_UP):
                compiled.run()
            turns = []
            for _ in range(n_turns):
                torch.cuda.synchronize()
                time.sleep(REST_SECONDS)
                theirs = compiled.rates()
                ours = minfer_rates(options.minfer, n_tokens)
                turns.append({"minfer": ours, "peer": theirs, "ratios": ratios(ours, theirs)})
                print(n_tokens, turns[-1]["ratios"], file=sys.stderr)
            of_all = ratios(*[[rate for turn in turns for rate in turn[who]]
                              for who in ("minfer", "peer")])
            results.append({"n_tokens": n_tokens, "ratios": of_all, "turns": turns})
    print(json.dumps({"card": torch.cuda.get_device_name(0), "torch": torch.__version__,
                      "results": results}))


if __name__ == "__main__":
    main()
