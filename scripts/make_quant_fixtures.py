#!/usr/bin/env python3
"""Writes tests/fixtures/quant_blocks.bin: blocks of every GGUF type and what they stand for; and
quant_rows.bin: values and the blocks that they become.

Both by the `gguf` package from PyPI, so that our code is held against somebody else's. For each type: name (8 bytes, zero-padded), elements (u64), bytes of the blocks
(u64), the blocks, the f32 values. Little-endian. Seeded: the same file every time.
"""

import argparse
import pathlib

import gguf
import numpy as np

ELEMENTS = 2048
TYPES = ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "Q2_K",
         "Q3_K", "IQ4_NL", "IQ4_XS", "MXFP4"]
# Where the f16 fields (scale, minimum) lie in a block.
F16_FIELDS = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2],
              "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "Q2_K": [80, 82], "Q3_K": [108],
              "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": []}
# Largest, its negative, smallest normal, smallest subnormal, its negative, zero, minus zero, one.
EXTREME_F16 = [0x7BFF, 0xFBFF, 0x0400, 0x0001, 0x8001, 0x0000, 0x8000, 0x3C00]


def finite_f16_bits(rng, n):
    bits = rng.integers(0, 1 << 16, n, dtype=np.uint16)
    return np.where((bits & 0x7C00) == 0x7C00, bits & 0x83FF, bits).astype(np.uint16)


def random_blocks(rng, name, n_blocks, block_bytes):
    """All bits random but the scales, which are finite; the first blocks are extreme."""
    blocks = rng.integers(0, 256, (n_blocks, block_bytes), dtype=np.uint8)
    blocks[0] = 0xFF
    blocks[1] = 0x00
    blocks[2] = 0x80
    for field in F16_FIELDS[name]:
        bits = finite_f16_bits(rng, n_blocks)
        n_extreme = min(n_blocks, len(EXTREME_F16))
        bits[:n_extreme] = EXTREME_F16[:n_extreme]
        blocks[:, field:field + 2] = bits.view(np.uint8).reshape(-1, 2)
    if name == "MXFP4":  # an exponent; above 252 values are infinite
        blocks[:, 0] = rng.integers(0, 253, n_blocks)
        blocks[:8, 0] = [0, 1, 2, 127, 128, 252, 251, 3]
    return blocks.reshape(-1)


def blocks_of(rng, name):
    if name == "F16":
        bits = finite_f16_bits(rng, ELEMENTS)
        bits[:len(EXTREME_F16)] = EXTREME_F16
        return bits.view(np.uint8)
    if name == "BF16":
        bits = rng.integers(0, 1 << 16, ELEMENTS, dtype=np.uint16)
        return np.where((bits & 0x7F80) == 0x7F80, bits & 0x807F, bits).astype(np.uint16).view(np.uint8)
    block_elements, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    return random_blocks(rng, name, ELEMENTS // block_elements, block_bytes)


def write_record(file, name, blocks, values):
    file.write(name.encode().ljust(8, b"\0"))
    file.write(np.array([values.size, blocks.size], "<u8").tobytes())
    file.write(blocks.tobytes() + values.tobytes())


def write_rows(output):
    rng = np.random.default_rng(20240301)
    values = (rng.standard_normal(512) * np.repeat(10.0 ** np.arange(-8, 8), 32)).astype(np.float32)
    values[64:96] = 0
    values[96:128] = np.abs(values[96:128])
    with open(output, "wb") as file:
        for name in ["F16", "BF16", "Q8_0", "Q4_0"]:
            fits = np.clip(values, -60000, 60000)
            blocks = gguf.quants.quantize(fits, gguf.GGMLQuantizationType[name])
            write_record(file, name, blocks.view(np.uint8), fits)


def main():
    default = pathlib.Path(__file__).parent.parent / "tests/fixtures"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", nargs="?", type=pathlib.Path, default=default)
    output = parser.parse_args().output
    write_rows(output / "quant_rows.bin")

    rng = np.random.default_rng(20240229)
    with open(output / "quant_blocks.bin", "wb") as file:
        for name in TYPES:
            blocks = blocks_of(rng, name)
            if name == "F16":
                values = blocks.view(np.float16).astype(np.float32)
            else:
                values = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name])
            assert values.size == ELEMENTS and values.dtype == np.float32
            assert np.isfinite(values).all(), name
            write_record(file, name, blocks, values)


if __name__ == "__main__":
    main()
