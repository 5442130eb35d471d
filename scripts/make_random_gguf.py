#!/usr/bin/env python3
"""Writes a GGUF file of a known shape with seeded random weights: one file to measure minfer and
llama.cpp with, as fast as the disk takes it. Norms and routers are F32. Needs nothing but Python,
so that it runs where the card is.

The vocabulary is made up: text is read byte by byte, and every other token is a numbered word."""
import argparse
import collections
import math
import pathlib
import random
import struct

SHAPES = {
    "llama-2-7b": dict(architecture="llama", layers=32, hidden=4096, heads=32, kv_heads=32,
                       head_dim=128, ffn=11008, vocab=32000, context=4096, norm_eps=1e-5),
    "qwen3-30b-a3b": dict(architecture="qwen3moe", layers=48, hidden=2048, heads=32, kv_heads=4,
                          head_dim=128, experts=128, used_experts=8, expert_ffn=768, ffn=6144,
                          vocab=151936, context=40960, norm_eps=1e-6),
    "mixtral-8x7b": dict(architecture="llama", layers=32, hidden=4096, heads=32, kv_heads=8,
                         head_dim=128, experts=8, used_experts=2, expert_ffn=14336, ffn=14336,
                         vocab=32000, context=32768, norm_eps=1e-5),
}
ROPE_THETA = 1e6
ALIGNMENT = 32  # bytes, of every tensor's data
F32 = 0  # the id of its tensors

# GGUF stores weights in blocks of `elements` in `n_bytes`. A block multiplies its codes by an F16
# number d, at byte d_at. With random codes the weights have `rms` times d as root mean square. Where
# a second F16 number follows d, it is min_factor times d, which makes the mean of the weights 0.
# If d_is_power, d is 2 to the power of the byte at d_at minus 128.
Blocks = collections.namedtuple("Blocks", "id elements n_bytes rms d_at min_factor d_is_power",
                                defaults=(0, 0, False))
TYPES = {
    "q4_0": Blocks(2, 32, 18, 4.6),
    "q4_1": Blocks(3, 32, 20, 4.6, 0, -7.5),
    "q5_1": Blocks(7, 32, 24, 9.2, 0, -15.5),
    "q8_0": Blocks(8, 32, 34, 74),
    "q2_k": Blocks(10, 256, 84, 13.9, 80, 1.5),
    "q3_k": Blocks(11, 256, 110, 43.3, 108),
    "q4_k": Blocks(12, 256, 144, 168, 0, 7.5),
    "q5_k": Blocks(13, 256, 176, 337, 0, 15.5),
    "q6_k": Blocks(14, 256, 210, 1365, 208),
    "iq4_nl": Blocks(20, 32, 18, 67.4),
    "iq4_xs": Blocks(23, 256, 136, 1246),
    "mxfp4": Blocks(39, 32, 17, 5.85, d_is_power=True),
}
# general.file_type. The mixes are their base, but for the matrices that llama.cpp makes others
# (of_mix).
FILE_TYPES = {"q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_1": 9, "q2_k": 10, "q3_k": 11, "q4_k": 14, "q4_k_m": 15,
              "q5_k": 16, "q5_k_m": 17, "q6_k": 18, "iq4_nl": 25, "iq4_xs": 30, "mxfp4_moe": 38}
MIXES = {"q4_k_m": "q4_k", "q5_k_m": "q5_k", "mxfp4_moe": "mxfp4"}
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6  # kinds of tokens

# A prime number of blocks or elements is repeated, so that no two rows of a tensor begin alike.
PERIOD = 262147
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


def metadata(name, shape, file_type):
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
    }
    if "experts" in shape:
        of_model["expert_count"] = shape["experts"]
        of_model["expert_used_count"] = shape["used_experts"]
    if architecture == "qwen3moe":
        of_model["expert_feed_forward_length"] = shape["expert_ffn"]
    pairs.update({f"{architecture}.{key}": value for key, value in of_model.items()})
    pairs.update({"general.quantization_version": 2, "general.file_type": file_type})
    pairs.update({f"tokenizer.ggml.{key}": value
                  for key, value in vocabulary(shape["vocab"]).items()})
    return b"".join(text(key) + typed(value) for key, value in pairs.items()), len(pairs)


def of_mix(base, name, layer, n_layers, n_experts):
    """The type of a matrix in llama.cpp's Q4_K_M and Q5_K_M: the base, but for the output and, in
    half of the layers, values and down; with eight experts, for keys, values and the output of attention.
    In MXFP4_MOE: the base for experts, Q8_0 for all else."""
    if base == "mxfp4":
        return base if name.startswith("ffn_") and n_experts else "q8_0"
    of_eight = {"attn_k": "q8_0", "attn_v": "q8_0", "attn_output": "q5_k"}
    if n_experts == 8 and name in of_eight:
        return of_eight[name]
    eighth = n_layers // 8
    more = layer < eighth or layer >= 7 * n_layers // 8 or (layer - eighth) % 3 == 2
    return "q6_k" if name == "output" or (more and name in ("attn_v", "ffn_down")) else base


def tensors(shape, file_type):
    """(name, type, dims) in the order of the file; dims begin with the length of a row."""
    hidden, layers = shape["hidden"], shape["layers"]
    q_dim, kv_dim = (shape[heads] * shape["head_dim"] for heads in ("heads", "kv_heads"))

    def matrix(name, layer=0):
        base = MIXES.get(file_type)
        return TYPES[of_mix(base, name, layer, layers, shape.get("experts")) if base else file_type]

    yield "token_embd", matrix("token_embd"), (hidden, shape["vocab"])
    yield "output_norm", F32, (hidden,)
    yield "output", matrix("output"), (hidden, shape["vocab"])
    for i in range(layers):
        at = f"blk.{i}."
        yield at + "attn_norm", F32, (hidden,)
        yield at + "attn_q", matrix("attn_q", i), (hidden, q_dim)
        yield at + "attn_k", matrix("attn_k", i), (hidden, kv_dim)
        yield at + "attn_v", matrix("attn_v", i), (hidden, kv_dim)
        yield at + "attn_output", matrix("attn_output", i), (q_dim, hidden)
        if shape["architecture"] == "qwen3moe":
            yield at + "attn_q_norm", F32, (shape["head_dim"],)
            yield at + "attn_k_norm", F32, (shape["head_dim"],)
        yield at + "ffn_norm", F32, (hidden,)
        if "experts" in shape:
            ffn, suffix, experts = shape["expert_ffn"], "_exps", (shape["experts"],)
            yield at + "ffn_gate_inp", F32, (hidden, *experts)
        else:
            ffn, suffix, experts = shape["ffn"], "", ()
        yield at + "ffn_gate" + suffix, matrix("ffn_gate", i), (hidden, ffn, *experts)
        yield at + "ffn_up" + suffix, matrix("ffn_up", i), (hidden, ffn, *experts)
        yield at + "ffn_down" + suffix, matrix("ffn_down", i), (ffn, hidden, *experts)


def n_bytes(kind, dims):
    n_elements = math.prod(dims)
    return 4 * n_elements if kind == F32 else n_elements // kind.elements * kind.n_bytes


def random_f32(rng, rms):
    """PERIOD numbers of random sign and mantissa, with one exponent: about `rms` in size."""
    exponent = round(math.log2(rms / RMS_OF_MANTISSAS)) + 127
    values = bytearray(rng.randbytes(4 * PERIOD))
    values[2::4] = values[2::4].translate(
        bytes(byte & 0x7F | (exponent & 1) << 7 for byte in range(256)))
    values[3::4] = values[3::4].translate(bytes(byte & 0x80 | exponent >> 1 for byte in range(256)))
    return values


def random_blocks(rng, kind, rms, n_blocks):
    """n_blocks of random bytes, with d of random sign and mantissa, or one of three powers: their
    values are about `rms` in size, and their mean is 0."""
    size = rms / kind.rms / RMS_OF_MANTISSAS
    blocks = bytearray(rng.randbytes(kind.n_bytes * n_blocks))
    for at in range(kind.d_at, len(blocks), kind.n_bytes):
        if kind.d_is_power:
            blocks[at] = 128 + round(math.log2(rms / kind.rms / math.sqrt(7))) + rng.randrange(3)
            continue
        d = size * (1 + rng.random()) * rng.choice((-1, 1))
        struct.pack_into("<e", blocks, at, d)
        if kind.min_factor:
            struct.pack_into("<e", blocks, at + 2, kind.min_factor * d)
            if kind.elements == 256:  # each sub-block's min is its scale: quant_blocks.h
                blocks[at + 8:at + 12] = blocks[at + 4:at + 8]
                blocks[at + 12:at + 16] = bytes(byte % 16 * 17 for byte in blocks[at + 12:at + 16])
    return blocks


class RandomWeights:
    """Data of tensors: each goes on where the last of its size and type ended in a random pool,
    which repeats."""

    def __init__(self, seed, bytes_of):
        """bytes_of: of all tensors of a type, which has no more blocks in its pools."""
        self.rng = random.Random(seed)
        self.bytes_of = bytes_of
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
            if kind == F32:
                self.pools[key] = random_f32(self.rng, rms)
            else:
                n_blocks = min(PERIOD, self.bytes_of[kind] // kind.n_bytes)
                self.pools[key] = random_blocks(self.rng, kind, rms, n_blocks)
        pool, at, left = memoryview(self.pools[key]), self.at.get(key, 0), n_bytes(kind, dims)
        while left > 0:
            piece = pool[at:at + left]
            out.write(piece)
            left -= len(piece)
            at = (at + len(piece)) % len(pool)
        self.at[key] = at


def write_gguf(path, name, shape, file_type, seed):
    pairs, n_pairs = metadata(name, shape, FILE_TYPES[file_type])
    infos, end, n_tensors, bytes_of = [], 0, 0, collections.Counter()
    for tensor, kind, dims in tensors(shape, file_type):
        end += -end % ALIGNMENT
        infos.append(text(f"{tensor}.weight") +
                     struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, F32 if kind == F32 else kind.id,
                                 end))
        end += n_bytes(kind, dims)
        n_tensors += 1
        bytes_of[kind] += n_bytes(kind, dims)
    weights = RandomWeights(seed, bytes_of)
    with open(path, "wb") as out:
        out.write(b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_pairs) + pairs + b"".join(infos))
        for tensor, kind, dims in tensors(shape, file_type):
            out.write(bytes(-out.tell() % ALIGNMENT))
            weights.write(out, tensor, kind, dims)
        out.write(bytes(-out.tell() % ALIGNMENT))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--type", choices=FILE_TYPES, default="q4_0", help="of all matrices")
    for key in ("layers", "hidden", "heads", "kv_heads", "head_dim", "experts", "used_experts",
                "expert_ffn", "ffn", "vocab", "context"):
        parser.add_argument("--" + key.replace("_", "-"), type=int, help="instead of the shape's")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("out", type=pathlib.Path, metavar="OUT.gguf")
    args = parser.parse_args()

    shape = {key: getattr(args, key, None) or value for key, value in SHAPES[args.shape].items()}
    if shape["architecture"] == "llama" and "experts" in shape:
        shape["ffn"] = shape["expert_ffn"]
    for _, kind, dims in tensors(shape, args.type):
        if kind != F32 and dims[0] % kind.elements:
            parser.error(f"rows of {dims[0]} elements: each must be a multiple of {kind.elements}, "
                         "those of a block")
    if shape["vocab"] < len(vocabulary(0)["token_type"]):
        parser.error("the vocabulary holds 3 special tokens and 256 bytes at least")
    write_gguf(args.out, args.shape, shape, args.type, args.seed)
    print(f"{args.out}: {args.out.stat().st_size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
