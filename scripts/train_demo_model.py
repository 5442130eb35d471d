#!/usr/bin/env python3
"""Trains the demonstration model of models/demo: a small Llama on English text, on one GPU.

    scripts/train_demo_model.py --data DIR --work DIR --out models/demo

--data holds the training texts (see TEXTS; .txt or .txt.xz), --work the tokenizer, the token stream
and the checkpoint that a run goes on from when it was stopped. The same seed, data and card give
the same tokenizer and the same order of the data. Takes about 6 minutes on one H200.
"""

import argparse
import json
import lzma
import math
import re
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

DIM, FFN_DIM, N_LAYERS, N_HEADS, HEAD_DIM = 256, 768, 8, 4, 64
CONTEXT, N_PIECES, EPS, THETA = 2048, 4096, 1e-5, 10000.0
BOS, EOS = 1, 2
END = "<|endoftext|>"

# File, how often it is read in one epoch. WikiText's own spacing (" , ", " @-@ ") is rare in them.
TEXTS = [("wikipedia-2015-part1", 1), ("wikipedia-2015-part2", 1), ("books-children", 1),
         ("tinystories-train-part", 1), ("wikitext-2-train-raw-first-1MB", 2),
         ("wikitext-2-train-tokenized", 1)]
HELD_OUT = ["wikitext-2-valid-raw-first-100KB", "tinystories-valid-part"]
PROMPTS = ["Once upon a time", "The history of the city", "The old man looked at the sea and",
           "In mathematics ,", "\"Where are you going?\" asked"]


# ---- text -----------------------------------------------------------------------------------------

def read_text(data, name):
    packed = data / f"{name}.txt.xz"
    if packed.exists():
        return lzma.decompress(packed.read_bytes()).decode()
    return (data / f"{name}.txt").read_text()


def documents(data, name):
    text = read_text(data, name)
    if name == "wikitext-2-train-tokenized":  # sentences with unknown words teach nothing
        text = "\n".join(" . ".join(s for s in line.split(" . ") if "<unk>" not in s)
                         for line in text.split("\n"))
    if name.startswith("wikitext"):  # an article begins at " = Title = "
        return [d for d in re.split(r"\n(?= = [^=])", text) if d.strip()]
    return [d.strip("\n") for d in text.split(END) if d.strip()]


def train_tokenizer(data, work):
    import sentencepiece as spm

    rng = np.random.default_rng(1)
    lines = [line for name, _ in TEXTS for d in documents(data, name) for line in d.split("\n")
             if line.strip()]
    picked = rng.permutation(len(lines))[:250_000]
    spm.SentencePieceTrainer.train(
        sentence_iterator=(lines[i] for i in picked), model_prefix=str(work / "tokenizer"),
        model_type="bpe", vocab_size=N_PIECES, byte_fallback=True, split_digits=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True, character_coverage=0.9999, max_sentence_length=65536,
        num_threads=16, unk_id=0, bos_id=BOS, eos_id=EOS, pad_id=-1, minloglevel=2)


def tokenize(data, work, names):
    """One stream: BOS, document, EOS, BOS, ..."""
    import sentencepiece as spm

    sp = spm.SentencePieceProcessor(model_file=str(work / "tokenizer.model"))
    parts = []
    for name, times in names:
        docs = documents(data, name)
        ids = [np.array([BOS, *d, EOS], np.uint16) for d in sp.encode(docs, num_threads=16)]
        parts += ids * times
    order = np.random.default_rng(2).permutation(len(parts))
    return np.concatenate([parts[i] for i in order])


# ---- model ----------------------------------------------------------------------------------------

class RmsNorm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(DIM))

    def forward(self, x):
        return F.rms_norm(x, (DIM,), self.weight.to(x.dtype), EPS)


def rope_table(device):
    angle = torch.outer(torch.arange(CONTEXT).float(),
                        THETA ** (-torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM))
    return angle.cos().to(device), angle.sin().to(device)


def rotate(x, table):  # x [batch, n_heads, n_tokens, head_dim], halves rotated against each other
    cos, sin = (t[: x.shape[2]].to(x.dtype) for t in table)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        linear = lambda n_in, n_out: torch.nn.Linear(n_in, n_out, bias=False)
        self.input_layernorm, self.post_attention_layernorm = RmsNorm(), RmsNorm()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (linear(DIM, DIM) for _ in range(4))
        self.gate_proj, self.up_proj = linear(DIM, FFN_DIM), linear(DIM, FFN_DIM)
        self.down_proj = linear(FFN_DIM, DIM)

    def forward(self, x, table):
        n, t, _ = x.shape
        h = self.input_layernorm(x)
        q, k, v = (p(h).view(n, t, N_HEADS, HEAD_DIM).transpose(1, 2)
                   for p in (self.q_proj, self.k_proj, self.v_proj))
        a = F.scaled_dot_product_attention(rotate(q, table), rotate(k, table), v, is_causal=True)
        x = x + self.o_proj(a.transpose(1, 2).reshape(n, t, DIM))
        h = self.post_attention_layernorm(x)
        return x + self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))


class Llama(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(N_PIECES, DIM)
        self.layers = torch.nn.ModuleList(Block() for _ in range(N_LAYERS))
        self.norm = RmsNorm()
        for name, p in self.named_parameters():
            if p.dim() == 2:
                scale = 1 / math.sqrt(2 * N_LAYERS) if name.endswith(("o_proj.weight", "down_proj.weight")) else 1
                torch.nn.init.normal_(p, std=0.02 * scale)

    def forward(self, ids, table):
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, table)
        return F.linear(self.norm(x), self.embed_tokens.weight)


# ---- training -------------------------------------------------------------------------------------

def learning_rate(step, n_steps, peak):
    """Linear warm-up over 300 steps, flat, then linearly to zero over the last 40 %."""
    return peak * min((step + 1) / 300, 1, (n_steps - step) / (0.4 * n_steps))


def batch_at(stream, step, n_rows, device):
    """Windows at random places that the step alone decides, so that a resumed run sees the same."""
    begins = np.random.default_rng([3, step]).integers(0, len(stream) - CONTEXT - 1, n_rows)
    rows = np.stack([stream[b : b + CONTEXT + 1] for b in begins]).astype(np.int64)
    rows = torch.from_numpy(rows).pin_memory().to(device, non_blocking=True)
    return rows[:, :-1], rows[:, 1:]


@torch.no_grad()
def held_out_loss(model, stream, table, device):
    """Mean NLL per token over windows without overlap, in the weights' own precision."""
    n = (len(stream) - 1) // CONTEXT
    total = 0.0
    for i in range(n):
        ids = torch.from_numpy(stream[i * CONTEXT : (i + 1) * CONTEXT + 1].astype(np.int64)).to(device)
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(ids[None, :-1], table)
        total += F.cross_entropy(logits[0].float(), ids[1:]).item()
    return total / n


def train(args, stream, held_out, device):
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    model, table = Llama().to(device), rope_table(device)
    decay = [p for p in model.parameters() if p.dim() == 2]
    rest = [p for p in model.parameters() if p.dim() != 2]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
                                  lr=args.lr, betas=(0.9, 0.95), fused=True)
    start, curve, seconds = 0, [], 0.0
    checkpoint = args.work / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start, curve, seconds = state["step"], state["curve"], state["seconds"]
        print(f"goes on from step {start}", flush=True)

    @torch.compile
    def loss_of(ids, targets):
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(ids, table)
        return F.cross_entropy(logits.view(-1, N_PIECES).float(), targets.reshape(-1))

    began, recent = time.time(), []
    for step in range(start, args.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps, args.lr)
        ids, targets = batch_at(stream, step, args.batch, device)
        loss = loss_of(ids, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        recent.append(loss.detach())
        done = step + 1
        if done % 250 == 0 or done == args.steps:
            spent = seconds + time.time() - began
            point = {"step": done, "train": round(torch.stack(recent).mean().item(), 4),
                     **{name: round(held_out_loss(model, s, table, device), 4) for name, s in held_out.items()},
                     "seconds": round(spent)}
            recent = []
            curve.append(point)
            print(json.dumps(point), flush=True)
            temporary = checkpoint.with_suffix(".tmp")
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": done,
                        "curve": curve, "seconds": spent}, temporary)
            temporary.rename(checkpoint)
        if time.time() - began > args.max_seconds:
            raise SystemExit(f"stopped at step {done}: run again to go on")
    return model, table, curve


# ---- output ---------------------------------------------------------------------------------------

@torch.no_grad()
def sample(model, table, sp, prompt, device, n=80):
    generator = torch.Generator(device).manual_seed(7)
    ids = [BOS, *sp.encode(prompt)]
    for _ in range(n):
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(torch.tensor([ids], device=device), table)[0, -1].float() / 0.7
        kept = torch.topk(logits, 40)
        choice = torch.multinomial(torch.softmax(kept.values, -1), 1, generator=generator)
        ids.append(int(kept.indices[choice]))
        if ids[-1] == EOS:
            break
    return sp.decode([i for i in ids if i > EOS])


def write_model(model, out, work):
    from safetensors.torch import save_file

    tensors = {}
    for name, p in model.state_dict().items():
        module = name.split(".")[-2]
        if module in ("q_proj", "k_proj", "v_proj", "o_proj"):
            name = name.replace(module, f"self_attn.{module}")
        elif module in ("gate_proj", "up_proj", "down_proj"):
            name = name.replace(module, f"mlp.{module}")
        tensors[f"model.{name}"] = p.to(torch.bfloat16).contiguous().cpu()
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": N_PIECES,
              "hidden_size": DIM, "intermediate_size": FFN_DIM, "num_hidden_layers": N_LAYERS,
              "num_attention_heads": N_HEADS, "num_key_value_heads": N_HEADS, "head_dim": HEAD_DIM,
              "max_position_embeddings": CONTEXT, "rms_norm_eps": EPS, "rope_theta": THETA,
              "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
              "tie_word_embeddings": True, "bos_token_id": BOS, "eos_token_id": EOS,
              "torch_dtype": "bfloat16"}
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (out / "tokenizer.model").write_bytes((work / "tokenizer.model").read_bytes())


README = """# The demonstration model

A Llama-architecture model of {params:.1f} million parameters (dim {dim}, ffn {ffn}, {layers} layers, head size {head},
context {context}, {pieces} SentencePiece BPE pieces with byte fallback, tied embedding, BF16), trained from scratch by
`scripts/train_demo_model.py` so that every command of minfer runs without a download. It writes English sentences; it
knows nothing.

## Data and licence

{tokens:.1f} million tokens an epoch, {epochs:.1f} epochs:

- English Wikipedia of 2015, 7,816 articles (CC BY-SA 3.0 and GFDL, Wikipedia contributors)
- 297 public-domain books, mostly for children (Project Gutenberg)
- WikiText-2's train split: its first raw megabyte, and the sentences of the tokenized form without unknown words (CC BY-SA 3.0, Salesforce)
- 2,316 stories of TinyStories (CDLA-Sharing-1.0, Eldan and Li)

No WikiText-2 test text is in it; the Wikipedia articles that overlap with it were left out. The weights are given under
CC BY-SA 3.0, the licence of most of the text.

## Training

Seed {seed}, {steps} steps of {batch} x {context} tokens, AdamW (betas 0.9 and 0.95, weight decay 0.1), learning rate {lr}
with a warm-up and a linear fall to zero over the last 40 %, BF16 autocast, {seconds} s on one {card}, PyTorch {torch}.
Held-out loss of the BF16 weights (nats a token, windows of {context} without overlap): {losses}.

| step | train | {names} |
|---:|---:|{rules}
{curve}

## Five samples

Temperature 0.7, top-k 40, one fixed seed, 80 tokens.

{samples}
"""


def write_readme(args, out, model, table, curve, n_tokens, held_out, device):
    import sentencepiece as spm

    sp = spm.SentencePieceProcessor(model_file=str(args.work / "tokenizer.model"))
    rounded = Llama().to(device)
    rounded.load_state_dict({k: v.to(torch.bfloat16).float() for k, v in model.state_dict().items()})
    losses = {name: held_out_loss(rounded, s, table, device) for name, s in held_out.items()}
    quote = lambda text: "\n".join("> " + line for line in text.split("\n"))
    shown = [p for i, p in enumerate(curve) if i % max(1, len(curve) // 12) == 0 or p is curve[-1]]
    (out / "README.md").write_text(README.format(
        params=sum(p.numel() for p in model.parameters()) / 1e6, dim=DIM, ffn=FFN_DIM, layers=N_LAYERS,
        head=HEAD_DIM, context=CONTEXT, pieces=N_PIECES, tokens=n_tokens / 1e6,
        epochs=args.steps * args.batch * CONTEXT / n_tokens, seed=args.seed, steps=args.steps,
        batch=args.batch, lr=args.lr, seconds=curve[-1]["seconds"], card=torch.cuda.get_device_name(),
        torch=torch.__version__, names=" | ".join(held_out), rules="---:|" * len(held_out),
        losses=", ".join(f"{loss:.4f} on {name}" for name, loss in losses.items()),
        curve="\n".join("| " + " | ".join(str(p[k]) for k in ("step", "train", *held_out)) + " |" for p in shown),
        samples="\n\n".join(quote(sample(rounded, table, sp, prompt, device)) for prompt in PROMPTS)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--batch", type=int, default=128, help="windows of 2,048 tokens in a step")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--max-seconds", type=float, default=1e9, help="of training; then stop, to be resumed")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda")

    began = time.time()
    if not (args.work / "tokenizer.model").exists():
        train_tokenizer(args.data, args.work)
        print(f"tokenizer: {time.time() - began:.0f} s", flush=True)
    if not (args.work / "train.npy").exists():
        np.save(args.work / "train.npy", tokenize(args.data, args.work, TEXTS))
        print(f"tokens: {time.time() - began:.0f} s", flush=True)
    stream = np.load(args.work / "train.npy")
    held_out = {name: tokenize(args.data, args.work, [(name, 1)]) for name in HELD_OUT}
    print(f"{len(stream)} tokens, {args.steps * args.batch * CONTEXT / len(stream):.1f} epochs", flush=True)
    model, table, curve = train(args, stream, held_out, device)
    write_model(model, args.out, args.work)
    write_readme(args, args.out, model, table, curve, len(stream), held_out, device)
    print(f"done in {time.time() - began:.0f} s")


if __name__ == "__main__":
    main()
