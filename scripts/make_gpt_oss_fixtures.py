#!/usr/bin/env python3
"""Writes the small gpt-oss models of tests/fixtures/models and their float64 logits.

    make_gpt_oss_fixtures.py [OUT]    default: tests/fixtures/models

As make_model_fixtures.py does for the other families; the experts also in MXFP4, whose values are
those that transformers dequantizes. Needs torch, transformers, safetensors, gguf.
"""

import json
import pathlib
import sys

import gguf
import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from fixture_models import (N_TOKENS, finish, float64_logits, make_model, tokens, write_expected,
                            write_hf)

# A ramp of YaRN that begins and ends between pairs, a window that most queries see past.
SIZES = dict(vocab_size=41, hidden_size=32, intermediate_size=20, num_hidden_layers=3,
             num_attention_heads=4, num_key_value_heads=2, head_dim=16, sliding_window=5,
             num_local_experts=5, num_experts_per_tok=2, max_position_embeddings=52,
             tie_word_embeddings=False, bos_token_id=1, eos_token_id=2, pad_token_id=None,
             rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
                              "original_max_position_embeddings": 13, "beta_fast": 2.0,
                              "beta_slow": 0.1, "truncate": False})
MXFP4 = dict(num_hidden_layers=2, num_local_experts=4)
BLOCK = 32


def config_of(**changes):
    return transformers.GptOssConfig(**(SIZES | changes))


def experts_of(model):
    return [layer.mlp.experts for layer in model.model.layers]


class Adjust:
    """Sinks that take much of the attention and differ by head, gates and ups that the limit cuts,
    and, in `codes`, what MXFP4 has for each matrix: blocks and exponents by name."""

    def __init__(self, dtype, expert_size=1.0, in_mxfp4=False):
        self.dtype, self.expert_size, self.in_mxfp4 = dtype, expert_size, in_mxfp4
        self.codes = {}

    def __call__(self, model):
        with torch.no_grad():
            for layer in model.model.layers:
                sinks = layer.self_attn.sinks
                sinks.copy_((1 + 1.5 * torch.randn_like(sinks)).to(self.dtype).float())
            for i, experts in enumerate(experts_of(model)):
                for name in ("gate_up_proj", "down_proj"):
                    weight = getattr(experts, name)  # [n_experts, in, out]
                    size = self.expert_size if name == "gate_up_proj" else 1
                    if self.in_mxfp4:
                        weight.copy_(self.make_codes(f"model.layers.{i}.mlp.experts.{name}",
                                                     weight.shape, size))
                    else:
                        spread = 1.5 * size / weight.shape[1] ** 0.5
                        weight.copy_((torch.randn_like(weight) * spread).to(self.dtype).float())

    def make_codes(self, name, shape, size):
        n_experts, n_in, n_out = shape
        blocks = torch.randint(0, 256, (n_experts, n_out, n_in // BLOCK, BLOCK // 2))
        middle = round(127 + np.log2(0.5 * size / n_in ** 0.5))
        scales = torch.randint(middle - 1, middle + 2, (n_experts, n_out, n_in // BLOCK))
        self.codes[name] = blocks.to(torch.uint8), scales.to(torch.uint8)
        return convert_moe_packed_tensors(*self.codes[name], dtype=torch.float32)


def write_mxfp4(out, codes):
    """Puts codes in the place of the experts, and keys as the published file has them."""
    path = out / "model.safetensors"
    tensors = load_file(path)
    for name, (blocks, scales) in codes.items():
        del tensors[name]
        tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = blocks, scales
    save_file(tensors, path, metadata={"format": "pt"})
    path = out / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope
    for key in ("swiglu_alpha", "layer_types"):
        config.pop(key)
    config["experts_per_token"] = config["num_experts_per_tok"]
    config["initial_context_length"] = rope["original_max_position_embeddings"]
    config["quantization_config"] = {
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                   "model.embed_tokens", "lm_head"],
        "quant_method": "mxfp4"}
    path.write_text(json.dumps(config, indent=2) + "\n")


def in_ggml_order(blocks, scales):
    """Blocks of an exponent and codes i, i + 16 in byte i."""
    low, high = blocks & 15, blocks >> 4
    in_order = torch.stack((low, high), dim=-1).flatten(-2)  # [.., 32]
    packed = in_order[..., :BLOCK // 2] | in_order[..., BLOCK // 2:] << 4
    return torch.cat((scales.unsqueeze(-1), packed), dim=-1).flatten(-2).numpy()


def add_experts(writer, at, name, experts, codes):
    """Matrices and biases of all experts, those of gate and up apart."""
    parts = {"gate_up_proj": {"gate": slice(0, None, 2), "up": slice(1, None, 2)},
             "down_proj": {"down": slice(None)}}
    for matrix, outs in parts.items():
        weight = getattr(experts, matrix).detach().transpose(1, 2)
        bias = getattr(experts, f"{matrix}_bias").detach()
        for part, rows in outs.items():
            if codes:
                blocks, scales = codes[f"{name}.{matrix}"]
                writer.add_tensor(f"{at}ffn_{part}_exps.weight",
                                  in_ggml_order(blocks[:, rows], scales[:, rows]),
                                  raw_dtype=gguf.GGMLQuantizationType.MXFP4)
            else:
                writer.add_tensor(f"{at}ffn_{part}_exps.weight",
                                  weight[:, rows].contiguous().half().numpy())
            writer.add_tensor(f"{at}ffn_{part}_exps.bias",
                              bias[:, rows].contiguous().float().numpy())


def write_gguf(path, model, config, codes):
    writer = gguf.GGUFWriter(path, "gpt-oss")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_expert_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_expert_count(config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_sliding_window(config.sliding_window)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
    writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    names = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
             "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
             "self_attn.sinks": "attn_sinks", "mlp.router": "ffn_gate_inp",
             "input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm"}
    outer = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    for hf, value in model.state_dict().items():
        if ".experts." in hf:
            continue
        module, _, part = hf.rpartition(".")
        if part == "sinks":
            module, part = hf, "weight"
        if module in outer:
            name = outer[module]
        else:
            _, _, layer, of_layer = module.split(".", 3)
            name = f"blk.{layer}.{names[of_layer]}"
        is_small = value.dim() == 1 or name.endswith("_inp")
        stored = value.float() if is_small else value.half()
        writer.add_tensor(f"{name}.{part}", stored.contiguous().numpy())
    for i, experts in enumerate(experts_of(model)):
        add_experts(writer, f"blk.{i}.", f"model.layers.{i}.mlp.experts", experts, codes)
    finish(writer)


# name: (configuration, stored type, size of gate and up, whether experts are in MXFP4). GGUF files
# have the limit of the published models, which large gates reach.
MODELS = {
    "gpt-oss-bf16": (config_of(swiglu_limit=1.5, swiglu_alpha=1.4), torch.bfloat16, 1, False),
    "gpt-oss-head64-f16": (config_of(
        num_attention_heads=2, num_key_value_heads=1, head_dim=64, num_hidden_layers=2,
        layer_types=["full_attention", "sliding_attention"]), torch.float16, 3, False),
    "gpt-oss-mxfp4": (config_of(intermediate_size=64, **MXFP4), torch.bfloat16, 3, True),
    "gguf-gpt-oss": (config_of(), torch.float16, 3, False),
    "gguf-gpt-oss-mxfp4": (config_of(intermediate_size=32, **MXFP4), torch.float16, 3, True),
}


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else root / "tests/fixtures/models"
    for seed, (name, (config, dtype, size, in_mxfp4)) in enumerate(MODELS.items()):
        adjust = Adjust(dtype, size, in_mxfp4)
        model = make_model(config, dtype, 300 + seed, adjust=adjust)
        (out / name).mkdir(parents=True, exist_ok=True)
        ids = tokens(config.vocab_size, N_TOKENS)
        if name.startswith("gguf"):
            write_gguf(out / name / "model.gguf", model, config, adjust.codes)
        write_expected(out / name / "expected.json", ids, float64_logits(model, ids))
        if not name.startswith("gguf"):
            write_hf(out / name, model, dtype, None)
        if in_mxfp4 and not name.startswith("gguf"):
            write_mxfp4(out / name, adjust.codes)


if __name__ == "__main__":
    main()
