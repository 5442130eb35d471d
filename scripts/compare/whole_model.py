"""Prefill and decode of a Llama model in PyTorch, with a static cache and random weights, beside `minfer bench`."""
import dataclasses
import json
import statistics
import subprocess
import time

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass
class Shape:
    layers: int = 32
    dim: int = 4096
    heads: int = 32
    hidden: int = 11008
    vocab: int = 32000


TINY = Shape(layers=2, dim=64, heads=2, hidden=96, vocab=100)


def rotate(x, cos_sin):
    """x [1, tokens, heads, head_dim]; cos_sin [tokens, head_dim / 2, 2]"""
    first, second = x.float().chunk(2, -1)
    cos, sin = cos_sin[None, :, None].unbind(-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x)


class Block(nn.Module):
    def __init__(self, shape, context, device):
        super().__init__()
        linear = lambda n_out, n_in: nn.Linear(n_in, n_out, bias=False, device=device, dtype=torch.half)
        self.shape = shape
        self.qkv, self.wo = linear(3 * shape.dim, shape.dim), linear(shape.dim, shape.dim)
        self.gate_up, self.down = linear(2 * shape.hidden, shape.dim), linear(shape.dim, shape.hidden)
        self.norms = nn.Parameter(torch.ones(2, shape.dim, device=device, dtype=torch.half))
        cache = (2, 1, shape.heads, context, shape.dim // shape.heads)
        self.register_buffer("cache", torch.zeros(cache, device=device, dtype=torch.half))

    def forward(self, x, positions, cos_sin, seen):
        s, tokens = self.shape, x.shape[1]
        qkv = self.qkv(F.rms_norm(x, (s.dim,), self.norms[0], 1e-5)).view(1, tokens, 3, s.heads, -1)
        q, k = (rotate(qkv[:, :, i], cos_sin).transpose(1, 2) for i in range(2))
        v = qkv[:, :, 2].transpose(1, 2)
        self.cache[0][:, :, positions], self.cache[1][:, :, positions] = k, v
        if tokens > 1:  # a prompt, from the beginning
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            attended = F.scaled_dot_product_attention(q, self.cache[0], self.cache[1], attn_mask=seen)
        x = x + self.wo(attended.transpose(1, 2).reshape(1, tokens, s.dim))
        gate, up = self.gate_up(F.rms_norm(x, (s.dim,), self.norms[1], 1e-5)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    """Logits behind the last of some tokens [1, n] at positions [n]."""

    def __init__(self, shape, context, device):
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab, shape.dim, device=device, dtype=torch.half)
        self.blocks = nn.ModuleList(Block(shape, context, device) for _ in range(shape.layers))
        self.norm = nn.Parameter(torch.ones(shape.dim, device=device, dtype=torch.half))
        self.output = nn.Linear(shape.dim, shape.vocab, bias=False, device=device, dtype=torch.half)
        head_dim = shape.dim // shape.heads
        angles = torch.outer(torch.arange(context), 1e4 ** -(torch.arange(0, head_dim, 2) / head_dim))
        self.register_buffer("cos_sin", torch.stack((angles.cos(), angles.sin()), -1).to(device))
        self.register_buffer("seen", torch.ones(context, context, dtype=torch.bool, device=device).tril())

    def forward(self, tokens, positions):
        x = self.embedding(tokens)
        cos_sin, seen = self.cos_sin[positions], self.seen[positions][None, None]
        for block in self.blocks:
            x = block(x, positions, cos_sin, seen)
        return self.output(F.rms_norm(x[:, -1:], (self.shape.dim,), self.norm, 1e-5))


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def prefill_rates(function, shape, n_tokens, n_runs, device):
    """Tokens/s of each run, after two that are not counted."""
    tokens = torch.randint(0, shape.vocab, (1, n_tokens), device=device)
    positions = torch.arange(n_tokens, device=device)
    rates = []
    for i in range(n_runs + 2):
        synchronize(device)
        begin = time.perf_counter()
        function(tokens, positions)
        synchronize(device)
        rates.append(n_tokens / (time.perf_counter() - begin))
    return rates[2:]


def decode_rates(function, first, n_tokens, n_runs, device):
    """The same of decode; function gives the token behind the last one."""
    token = torch.ones(1, 1, dtype=torch.long, device=device)
    positions = torch.arange(first + n_tokens, device=device)
    rates = []
    for i in range(n_runs + 1):
        synchronize(device)
        begin = time.perf_counter()
        for at in range(first, first + n_tokens):
            token = function(token, positions[at:at + 1]).clone()  # a graph writes it again
        synchronize(device)
        rates.append(n_tokens / (time.perf_counter() - begin))
    return rates[1:]


def minfer_rates(minfer, model, tests):
    """{"pp512": samples, "tg128 @ d128": samples}, the shares of the read limit, and bytes a token"""
    found = {}
    for options in tests:
        done = subprocess.run([minfer, "bench", *model, *options, "-o", "json", "--quiet"], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip())
        for row in json.loads(done.stdout):
            found[row["test"]] = row
    return found


def compare(minfer, device, quick, n_runs, log):
    """Rows: {"test", "implementation", "tokens_per_s", "low", "high", "read_share"}; minfer runs before and behind."""
    shape, prompts = (TINY, (16,)) if quick else (Shape(), (512, 2048, 4096))
    depth, n_gen = (8, 4) if quick else (128, 128)
    name = ["-m", "demo", "--device", "cpu"] if quick else ["--synthetic", "llama-2-7b:f16"]
    tests = [["-p", ",".join(map(str, prompts)), "-n", "0", "-r", str(n_runs)],
             ["-p", "0", "-n", str(n_gen), "-d", str(depth), "-r", str(max(2, n_runs // 2))]]
    before = minfer_rates(minfer, name, tests)
    samples = {}
    with torch.no_grad():
        model = Model(shape, max(*prompts, 2 * (depth + n_gen)), device).eval()
        decoder = Model(shape, depth + n_gen, device).eval() if not quick else model
        decoder.embedding, decoder.output = model.embedding, model.output
        for mine, theirs in zip(decoder.blocks, model.blocks):  # one set of weights, a smaller cache for decode
            mine.qkv, mine.wo, mine.gate_up, mine.down = theirs.qkv, theirs.wo, theirs.gate_up, theirs.down
        for kind in ("eager", "compile"):
            for n in prompts:
                torch._dynamo.reset()
                run = torch.compile(model.forward, fullgraph=True, dynamic=False) if kind == "compile" else model
                samples[f"pp{n}", kind] = prefill_rates(run, shape, n, n_runs, device)
                log(f"pp{n} {kind}: {statistics.mean(samples[f'pp{n}', kind]):.0f} tokens/s")
            torch._dynamo.reset()
            run = lambda token, position: decoder(token, position).argmax(-1)
            if kind == "compile":
                run = torch.compile(run, fullgraph=True, dynamic=False,
                                    mode="reduce-overhead" if device == "cuda" else "default")
            test = f"tg{n_gen} @ d{depth}"
            samples[test, kind] = decode_rates(run, depth, n_gen, 3, device)
            log(f"{test} {kind}: {statistics.mean(samples[test, kind]):.1f} tokens/s")
    del model, decoder
    if device == "cuda":
        torch.cuda.empty_cache()
    behind = minfer_rates(minfer, name, tests)
    shares = {}
    for test in before:
        samples[test, "minfer"] = before[test]["samples_ts"] + behind[test]["samples_ts"]
        shares[test] = statistics.mean((before[test]["read_share"], behind[test]["read_share"]))
    return [{"test": test, "implementation": kind, "tokens_per_s": statistics.mean(rates), "low": min(rates),
             "high": max(rates), "samples": len(rates),
             "read_share": shares.get(test) if kind == "minfer" and test.startswith("tg") else None}
            for (test, kind), rates in sorted(samples.items())]
