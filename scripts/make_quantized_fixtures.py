#!/usr/bin/env python3
"""Writes the small quantized models of tests/fixtures/quantized and what they mean.

    make_quantized_fixtures.py [OUT]    default: tests/fixtures/quantized

One seeded Llama, packed for each kind of checkpoint: compressed-tensors by the package of that name
(0.20.0), GPTQ and AWQ by the plain code below, after the descriptions of their formats. Beside each
lie the SHA-256 of every matrix once dequantized (f32, row by row) and the float64 logits that
transformers gives with those matrices. Needs torch, transformers, safetensors, compressed-tensors.
"""

import hashlib
import json
import pathlib
import shutil
import sys

import numpy as np
import torch
import transformers
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import (QuantizationArgs, QuantizationConfig,
                                             QuantizationScheme)
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import save_file

GROUP = 32
CONFIG = dict(vocab_size=67, hidden_size=64, intermediate_size=64, num_hidden_layers=1,
              num_attention_heads=4, num_key_value_heads=1, max_position_embeddings=128,
              rms_norm_eps=1e-5, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2)
IDS = [1, 17, 42, 66]


def make_model():
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.copy_(1 + 0.3 * torch.randn_like(weight))
            else:
                weight.copy_(torch.randn_like(weight) * 1.5 / weight.shape[-1] ** 0.5)
            weight.copy_(weight.half().float())
    return model


# ---- compressed-tensors: tensors of a module and the matrix that they mean

def by_compressed_tensors(compressor, scheme, scale_dtype):
    def pack(weight):
        out_dim, in_dim = weight.shape
        group = scheme.weights.group_size or in_dim
        groups = weight.reshape(out_dim, in_dim // group, group)
        scale, zero = calculate_qparams(groups.amin(-1), groups.amax(-1), scheme.weights)
        scale = scale.to(scale_dtype)
        stored = compressor.compress({"weight": weight, "weight_scale": scale,
                                      "weight_zero_point": zero}, scheme)
        # Dequantized in f32, without the rounding to the type of the scale that follows there.
        meaning = compressor.decompress({**stored, "weight_scale": scale.float()}, scheme)
        return stored, meaning["weight"]
    return pack


def compressed_tensors(layout, scale_dtype, **args):
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**args))
    config = QuantizationConfig(config_groups={"group_0": scheme}, format=layout,
                                quantization_status="compressed", ignore=["lm_head"])
    pack = by_compressed_tensors(BaseCompressor.get_value_from_registry(layout), scheme,
                                 scale_dtype)
    return json.loads(config.model_dump_json()), pack


# ---- GPTQ and AWQ: unsigned codes q with w = scale * (q - zero), all stored as [in, out]

def quantize_groups(w, bits, group, symmetric, group_of_input=None):
    """w [in, out] to codes [in, out], zeros and f16 scales [groups, out]."""
    in_dim = w.shape[0]
    if group_of_input is None:
        group_of_input = np.arange(in_dim) // group
    top = 2**bits - 1
    codes = np.zeros(w.shape, np.int64)
    scales, zeros = [], []
    for g in range(in_dim // group):
        rows = w[group_of_input == g]
        low, high = np.minimum(rows.min(0), 0), np.maximum(rows.max(0), 0)
        if symmetric:
            scale = np.float16(2 * np.maximum(-low, high) / top)
            zero = np.full(w.shape[1], 2 ** (bits - 1))
        else:
            scale = np.float16((high - low) / top)
            zero = np.clip(np.rint(-low / scale.astype(np.float64)), 0, top).astype(np.int64)
        codes[group_of_input == g] = np.clip(np.rint(rows / scale.astype(np.float64)) + zero, 0,
                                              top)
        scales.append(scale)
        zeros.append(zero)
    scales, zeros = np.stack(scales), np.stack(zeros)
    meaning = ((codes - zeros[group_of_input]).astype(np.float32) *
               scales[group_of_input].astype(np.float32))
    return codes, zeros, scales, group_of_input, meaning


def pack_last(values, bits, order=range(8)):
    """[n, m] to words [n, m * bits / 32]: place p of a word has its column order[p]."""
    per_word = 32 // bits
    words = values.reshape(values.shape[0], -1, per_word).astype(np.uint64)
    packed = sum(words[:, :, column] << np.uint64(bits * place)
                 for place, column in zip(range(per_word), order))
    return torch.from_numpy(packed.astype(np.uint32).view(np.int32))


def gptq(bits, group, symmetric, version, desc_act=False):
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": symmetric,
              "desc_act": desc_act, "damp_percent": 0.01, "static_groups": False,
              "true_sequential": True, "lm_head": False, "checkpoint_format": version}

    def pack(weight):
        w = weight.numpy().T
        columns = group if group > 0 else w.shape[0]
        order = None
        if desc_act:
            order = np.random.default_rng(w.shape[0]).permutation(w.shape[0]) // columns
        codes, zeros, scales, g_idx, meaning = quantize_groups(w, bits, columns, symmetric, order)
        stored_zeros = (zeros - 1) % 2**bits if version == "gptq" else zeros
        return {"qweight": pack_last(codes.T, bits).T.contiguous(),
                "qzeros": pack_last(stored_zeros, bits),
                "scales": torch.from_numpy(scales),
                "g_idx": torch.from_numpy(g_idx.astype(np.int32))}, torch.from_numpy(meaning.T)
    return config, pack


def awq():
    config = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True,
              "version": "gemm", "modules_to_not_convert": None}

    def pack(weight):
        codes, zeros, scales, _, meaning = quantize_groups(weight.numpy().T, 4, GROUP, False)
        order = [0, 2, 4, 6, 1, 3, 5, 7]
        return {"qweight": pack_last(codes, 4, order), "qzeros": pack_last(zeros, 4, order),
                "scales": torch.from_numpy(scales)}, torch.from_numpy(meaning.T)
    return config, pack


GROUPED = dict(strategy="group", group_size=GROUP)
KINDS = {
    "ct-int4-g32": compressed_tensors("pack-quantized", torch.float16, num_bits=4, **GROUPED),
    "ct-int4-g32-asymmetric-bf16": compressed_tensors(
        "pack-quantized", torch.bfloat16, num_bits=4, symmetric=False, **GROUPED),
    "ct-int8-row": compressed_tensors("int-quantized", torch.float32, num_bits=8,
                                      strategy="channel"),
    "ct-int8-packed-row-asymmetric": compressed_tensors(
        "pack-quantized", torch.float16, num_bits=8, strategy="channel", symmetric=False),
    "gptq-v1-int4-g32": gptq(4, GROUP, False, "gptq"),
    "gptq-v2-int8-row": gptq(8, -1, True, "gptq_v2"),
    "gptq-v1-int4-desc-act": gptq(4, GROUP, False, "gptq", desc_act=True),
    "awq-int4-g32": awq(),
}


def sha256_of(weight):
    return hashlib.sha256(weight.float().contiguous().numpy().tobytes()).hexdigest()


def write(out, quantization_config, pack):
    model = make_model()
    tensors, meanings = {}, {}
    for name, weight in model.state_dict().items():
        module = name.removesuffix(".weight")
        if name == "lm_head.weight":
            continue
        if not module.endswith("_proj"):
            tensors[name] = weight.half()
            continue
        stored, meaning = pack(weight)
        tensors |= {f"{module}.{part}": value.contiguous() for part, value in stored.items()}
        meanings[name] = sha256_of(meaning)
        with torch.no_grad():
            weight.copy_(meaning)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    model.config.save_pretrained(out)
    config = json.loads((out / "config.json").read_text())
    config["quantization_config"] = quantization_config
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    with torch.no_grad():
        logits = model.double()(torch.tensor([IDS])).logits[0]
    expected = {"ids": IDS, "logits": [[float(f"{x:.8g}") for x in row] for row in logits.tolist()],
                "sha256": meanings}
    (out / "expected.json").write_text(json.dumps(expected, separators=(",", ":")) + "\n")


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else root / "tests/fixtures/quantized"
    for name, (config, pack) in KINDS.items():
        write(out / name, config, pack)


main()
