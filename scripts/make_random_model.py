#!/usr/bin/env python3
"""Writes a Hugging Face directory of a known shape with seeded random FP16 weights, sharded with an
index: something to measure `minfer quantize` and loading with. One tensor is in memory at a time."""
import argparse
import json
import pathlib
import struct

import numpy as np

SHAPES = {
    "tiny": dict(hidden=256, ffn=704, layers=4, heads=4, kv_heads=4, vocab=1000, context=512),
    "small": dict(hidden=768, ffn=2048, layers=8, heads=12, kv_heads=12, vocab=8000, context=512),
    "tinyllama-1.1b": dict(hidden=2048, ffn=5632, layers=22, heads=32, kv_heads=4, vocab=32000,
                           context=2048),
    "llama-2-7b": dict(hidden=4096, ffn=11008, layers=32, heads=32, kv_heads=32, vocab=32000,
                       context=4096),
    "llama-2-13b": dict(hidden=5120, ffn=13824, layers=40, heads=40, kv_heads=40, vocab=32000,
                        context=4096),
}
BYTES = 2  # of an element


def config(shape):
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape["hidden"],
        "intermediate_size": shape["ffn"],
        "num_hidden_layers": shape["layers"],
        "num_attention_heads": shape["heads"],
        "num_key_value_heads": shape["kv_heads"],
        "vocab_size": shape["vocab"],
        "max_position_embeddings": shape["context"],
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
    }


def tensors(shape):
    """(name, dims) in the order of the files."""
    hidden, ffn = shape["hidden"], shape["ffn"]
    kv_dim = hidden // shape["heads"] * shape["kv_heads"]
    yield "model.embed_tokens.weight", (shape["vocab"], hidden)
    for i in range(shape["layers"]):
        at = f"model.layers.{i}."
        yield at + "input_layernorm.weight", (hidden,)
        yield at + "self_attn.q_proj.weight", (hidden, hidden)
        yield at + "self_attn.k_proj.weight", (kv_dim, hidden)
        yield at + "self_attn.v_proj.weight", (kv_dim, hidden)
        yield at + "self_attn.o_proj.weight", (hidden, hidden)
        yield at + "post_attention_layernorm.weight", (hidden,)
        yield at + "mlp.gate_proj.weight", (ffn, hidden)
        yield at + "mlp.up_proj.weight", (ffn, hidden)
        yield at + "mlp.down_proj.weight", (hidden, ffn)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (shape["vocab"], hidden)


def shards(shape, most_bytes):
    """Lists of tensors that fit into one file each."""
    shard, size = [], 0
    for name, dims in tensors(shape):
        n_bytes = int(np.prod(dims)) * BYTES
        if shard and size + n_bytes > most_bytes:
            yield shard
            shard, size = [], 0
        shard.append((name, dims, n_bytes))
        size += n_bytes
    yield shard


def values(rng, dims):
    """Norms are 1; matrices are normal with variance 1 / in, so that activations keep their size."""
    if len(dims) == 1:
        return np.ones(dims, np.float16)
    scale = np.float32(dims[1] ** -0.5)
    return (rng.standard_normal(dims, np.float32) * scale).astype(np.float16)


def write_shard(path, shard, rng):
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, dims, n_bytes in shard:
        header[name] = {"dtype": "F16", "shape": dims, "data_offsets": [end, end + n_bytes]}
        end += n_bytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _, dims, _ in shard:
            values(rng, dims).tofile(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shard-gb", type=float, default=5.0, help="at most, of one file")
    parser.add_argument("out", type=pathlib.Path, metavar="OUT")
    args = parser.parse_args()

    shape = SHAPES[args.shape]
    args.out.mkdir(parents=True)
    (args.out / "config.json").write_text(json.dumps(config(shape), indent=2) + "\n")
    files = list(shards(shape, args.shard_gb * 1e9))
    weight_map, total = {}, 0
    rng = np.random.Generator(np.random.SFC64(args.seed))
    for i, shard in enumerate(files, 1):
        name = f"model-{i:05}-of-{len(files):05}.safetensors"
        write_shard(args.out / name, shard, rng)
        weight_map.update({tensor: name for tensor, _, _ in shard})
        total += sum(n_bytes for _, _, n_bytes in shard)
        print(f"{name}: {len(shard)} tensors", flush=True)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (args.out / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


if __name__ == "__main__":
    main()
