#!/usr/bin/env python3
"""Holds directories that `minfer quantize` has written against the compressed-tensors package: every
tensor must dequantize to the value that the format's definition gives, and transformers must load the
whole and hold the same weights. Needs torch, transformers and compressed-tensors."""
import json
import pathlib
import re
import sys

import numpy as np
import torch
import transformers
from compressed_tensors import __version__ as package_version
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig
from safetensors.torch import load_file


def unpack(words, bits, count, axis):
    """Unsigned codes of int32 words, the first in the low bits, along an axis."""
    words = np.moveaxis(words.numpy().view(np.uint32), axis, -1)
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    codes = (words[..., None] >> shifts & ((1 << bits) - 1)).reshape(*words.shape[:-1], -1)
    return np.moveaxis(codes[..., :count], -1, axis).astype(np.float32)


def by_definition(parts, bits):
    """scale * (level - zero) in f32, then f16: what readers make of it."""
    scale = parts["weight_scale"].numpy().astype(np.float32)
    if "weight" in parts:
        codes, zero = parts["weight"].numpy().astype(np.float32), np.zeros_like(scale)
    else:
        out, columns = parts["weight_shape"].tolist()
        codes = unpack(parts["weight_packed"], bits, columns, 1)
        zero = np.full_like(scale, 1 << (bits - 1))
        if "weight_zero_point" in parts:
            zero = unpack(parts["weight_zero_point"], bits, out, 0)
    group = codes.shape[1] // scale.shape[1]
    values = np.repeat(scale, group, 1) * (codes - np.repeat(zero, group, 1))
    return values.astype(np.float16)


def scheme_of(module, config):
    for scheme in config.config_groups.values():
        for target in scheme.targets:
            named = target == module or target.startswith("re:") and re.match(target[3:], module)
            if named or target == "Linear" and "embed" not in module:
                return scheme
    raise ValueError(f"no config group has {module}")


def modules_of(tensors):
    modules = {}
    for name, tensor in tensors.items():
        module, part = name.rsplit(".", 1)
        modules.setdefault(module, {})[part] = tensor
    return {module: parts for module, parts in modules.items() if "weight_scale" in parts}


def check(directory):
    text = json.loads((directory / "config.json").read_text())["quantization_config"]
    config = QuantizationConfig.model_validate(text)
    modules = modules_of(load_file(directory / "model.safetensors"))
    expected, asymmetric, faults = {}, False, 0
    for module, parts in modules.items():
        scheme = scheme_of(module, config)
        asymmetric |= not scheme.weights.symmetric
        expected[module] = by_definition(parts, scheme.weights.num_bits)
        compressor = BaseCompressor.get_value_from_registry(scheme.format)
        theirs = compressor.decompress(dict(parts), scheme)["weight"]
        if theirs.dtype != torch.float16 or not np.array_equal(theirs.numpy(), expected[module]):
            print(f"{directory}: {module}: the package has other values")
            faults += 1
    print(f"{directory}: {len(modules)} tensors dequantized by the package, {faults} differ")
    if asymmetric:
        print("  transformers 5.23 with compressed-tensors 0.20 loads no packed zero-points, not "
              "even those that the package has written: not tried")
        return faults
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype="auto")
    logits = model(torch.arange(1, 9)[None]).logits  # the first pass decompresses
    weights = model.state_dict()
    n_different = sum(
        not np.array_equal(weights[f"{module}.weight"].to(torch.float16).numpy(), values)
        for module, values in expected.items())
    finite = bool(torch.isfinite(logits).all())
    print(f"  loaded by transformers: {n_different} weights differ, logits finite: {finite}")
    return faults + n_different + (not finite)


def main():
    print(f"compressed-tensors {package_version}, transformers {transformers.__version__}, "
          f"torch {torch.__version__}")
    faults = sum(check(pathlib.Path(name)) for name in sys.argv[1:])
    sys.exit(faults > 0)


if __name__ == "__main__":
    main()
