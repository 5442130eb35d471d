#!/usr/bin/env python3
"""Writes a GGUF file of a known mixture of experts with seeded random Q4_0 weights: one file to
measure minfer and llama.cpp with, as fast as the disk takes it. Norms and routers are F32. Needs
nothing but Python, so that it runs where the card is.

The vocabulary is made up: text is read byte by byte, and every other token is a numbered word."""
import argparse
import math
import pathlib
import random
import struct

SHAPES = {
    "qwen3-30b-a3b": dict(architecture="qwen3moe", layers=48, hidden=2048, heads=32, kv_heads=4,
                          head_dim=128, experts=128, used_experts=8, expert_ffn=768, ffn=6144,
                          vocab=151936, context=40960, norm_eps=1e-6),
    "mixtral-8x7b": dict(architecture="llama", layers=32, hidden=4096, heads=32, kv_heads=8,
                         head_dim=128, experts=8, used_experts=2, expert_ffn=14336, ffn=14336,
                         vocab=32000, context=32768, norm_eps=1e-5),
}
ROPE_THETA = 1e6
ALIGNMENT = 32  # bytes, of every tensor's data
F32, Q4_0 = 0, 2  # ids of GGUF's tensor types
BLOCK, BLOCK_BYTES = 32, 18  # of Q4_0: a half-precision scale and 32 codes of 4 bits
Q4_0_FILE = 2  # general.file_type
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6  # kinds of tokens

# A prime number of blocks or elements is repeated, so that no two rows of a tensor begin alike.
PERIOD = 262147
RMS_OF_CODES = math.sqrt(sum((code - 8) ** 2 for code in range(16)) / 16)
RMS_OF_MANTISSAS = math.sqrt(7 / 3)  # of numbers that are uniform from 1 to 2


def text(value):
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def typed(value):
    """A value of the metadata behind the id of its type: u32, f32 or a string, or an array of i32,
    f32 or strings."""
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    kind, code = (6, "f") if isinstance(value[0], float) else (5, "i")
    return struct.pack(f"<IIQ{len(value)}{code}", 9, kind, len(value), *value)


def vocabulary(n_tokens):
    """A SentencePiece vocabulary: unknown, beginning, end, 256 bytes, and numbered words."""
    names = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    kinds = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256
    n_words = n_tokens - len(names)
    names += [f"\u2581word{i}" for i in range(n_words)]
    return {
        "model": "llama",
        "tokens": names,
        "scores": [0.0] * (n_tokens - n_words) + [float(-i) for i in range(n_words)],
        "token_type": kinds + [NORMAL] * n_words,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }


def metadata(name, shape):
    architecture = shape["architecture"]
    pairs = {"general.architecture": architecture, "general.type": "model", "general.name": name}
    of_model = {
        "block_count": shape["layers"],
        "context_length": shape["context"],
        "embedding_length": shape["hidden"],
        "feed_forward_length": shape["ffn"],
        "attention.head_count": shape["heads"],
        "attention.head_count_kv": shape["kv_heads"],
        "attention.key_length": shape["head_dim"],
        "attention.value_length": shape["head_dim"],
        "attention.layer_norm_rms_epsilon": shape["norm_eps"],
        "rope.freq_base": ROPE_THETA,
        "rope.dimension_count": shape["head_dim"],
        "expert_count": shape["experts"],
        "expert_used_count": shape["used_experts"],
    }
    if architecture == "qwen3moe":
        of_model["expert_feed_forward_length"] = shape["expert_ffn"]
    pairs.update({f"{architecture}.{key}": value for key, value in of_model.items()})
    pairs.update({"general.quantization_version": 2, "general.file_type": Q4_0_FILE})
    pairs.update({f"tokenizer.ggml.{key}": value
                  for key, value in vocabulary(shape["vocab"]).items()})
    return b"".join(text(key) + typed(value) for key, value in pairs.items()), len(pairs)


def tensors(shape):
    """(name, type, dims) in the order of the file; dims begin with the length of a row."""
    hidden, ffn, experts = shape["hidden"], shape["expert_ffn"], shape["experts"]
    q_dim, kv_dim = (shape[heads] * shape["head_dim"] for heads in ("heads", "kv_heads"))
    yield "token_embd", Q4_0, (hidden, shape["vocab"])
    yield "output_norm", F32, (hidden,)
    yield "output", Q4_0, (hidden, shape["vocab"])
    for i in range(shape["layers"]):
        at = f"blk.{i}."
        yield at + "attn_norm", F32, (hidden,)
        yield at + "attn_q", Q4_0, (hidden, q_dim)
        yield at + "attn_k", Q4_0, (hidden, kv_dim)
        yield at + "attn_v", Q4_0, (hidden, kv_dim)
        yield at + "attn_output", Q4_0, (q_dim, hidden)
        if shape["architecture"] == "qwen3moe":
            yield at + "attn_q_norm", F32, (shape["head_dim"],)
            yield at + "attn_k_norm", F32, (shape["head_dim"],)
        yield at + "ffn_norm", F32, (hidden,)
        yield at + "ffn_gate_inp", F32, (hidden, experts)
        yield at + "ffn_gate_exps", Q4_0, (hidden, ffn, experts)
        yield at + "ffn_up_exps", Q4_0, (hidden, ffn, experts)
        yield at + "ffn_down_exps", Q4_0, (ffn, hidden, experts)


def n_bytes(kind, dims):
    n_elements = math.prod(dims)
    return 4 * n_elements if kind == F32 else n_elements // BLOCK * BLOCK_BYTES


def random_f32(rng, rms):
    """PERIOD numbers of random sign and mantissa, with one exponent: about `rms` in size."""
    exponent = round(math.log2(rms / RMS_OF_MANTISSAS)) + 127
    values = bytearray(rng.randbytes(4 * PERIOD))
    values[2::4] = values[2::4].translate(
        bytes(byte & 0x7F | (exponent & 1) << 7 for byte in range(256)))
    values[3::4] = values[3::4].translate(bytes(byte & 0x80 | exponent >> 1 for byte in range(256)))
    return values


def random_q4_0(rng, rms):
    """PERIOD blocks of random codes, with scales of random sign and mantissa and one exponent:
    their values are about `rms` in size, and their mean is 0."""
    exponent = round(math.log2(rms / RMS_OF_CODES / RMS_OF_MANTISSAS)) + 15
    blocks = bytearray(rng.randbytes(BLOCK_BYTES * PERIOD))
    blocks[1::BLOCK_BYTES] = blocks[1::BLOCK_BYTES].translate(
        bytes(byte & 0x83 | exponent << 2 for byte in range(256)))
    return blocks


class RandomWeights:
    """Data of tensors: each goes on where the last of its size and type ended in a random pool,
    which repeats."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.pools = {}
        self.at = {}

    def write(self, out, name, kind, dims):
        if len(dims) == 1:
            out.write(struct.pack("<f", 1) * dims[0])
            return
        # Activations keep their size through a matrix; embeddings are as large as what layers add.
        rms = 1 if name == "token_embd" else dims[0] ** -0.5
        key = kind, rms
        if key not in self.pools:
            self.pools[key] = (random_f32 if kind == F32 else random_q4_0)(self.rng, rms)
        pool, at, left = memoryview(self.pools[key]), self.at.get(key, 0), n_bytes(kind, dims)
        while left > 0:
            piece = pool[at:at + left]
            out.write(piece)
            left -= len(piece)
            at = (at + len(piece)) % len(pool)
        self.at[key] = at


def write_gguf(path, name, shape, seed):
    pairs, n_pairs = metadata(name, shape)
    infos, end, n_tensors = [], 0, 0
    for tensor, kind, dims in tensors(shape):
        end += -end % ALIGNMENT
        infos.append(text(f"{tensor}.weight") +
                     struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, end))
        end += n_bytes(kind, dims)
        n_tensors += 1
    weights = RandomWeights(seed)
    with open(path, "wb") as out:
        out.write(b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_pairs) + pairs + b"".join(infos))
        for tensor, kind, dims in tensors(shape):
            out.write(bytes(-out.tell() % ALIGNMENT))
            weights.write(out, tensor, kind, dims)
        out.write(bytes(-out.tell() % ALIGNMENT))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, required=True)
    for key in ("layers", "hidden", "heads", "kv_heads", "head_dim", "experts", "used_experts",
                "expert_ffn", "vocab", "context"):
        parser.add_argument("--" + key.replace("_", "-"), type=int, help="instead of the shape's")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("out", type=pathlib.Path, metavar="OUT.gguf")
    args = parser.parse_args()

    shape = {key: getattr(args, key, None) or value for key, value in SHAPES[args.shape].items()}
    if shape["architecture"] == "llama":
        shape["ffn"] = shape["expert_ffn"]
    rows = shape["hidden"], shape["heads"] * shape["head_dim"], shape["expert_ffn"]
    if any(row % BLOCK for row in rows):
        parser.error(f"rows of {', '.join(map(str, rows))} elements: each must be a multiple of "
                     f"{BLOCK}, a block of Q4_0")
    if shape["vocab"] < len(vocabulary(0)["token_type"]):
        parser.error("the vocabulary holds 3 special tokens and 256 bytes at least")
    write_gguf(args.out, args.shape, shape, args.seed)
    print(f"{args.out}: {args.out.stat().st_size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
