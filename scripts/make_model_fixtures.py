#!/usr/bin/env python3
"""Writes the small models of tests/fixtures/models and their float64 logits.

    make_model_fixtures.py [OUT]    default: tests/fixtures/models

Each is a seeded random model of one variant of a family, written by Hugging Face
transformers (or the gguf package) and evaluated by transformers in float64. Weights are rounded to
the stored type before they are evaluated. gpt-oss: make_gpt_oss_fixtures.py.
Needs torch, transformers, safetensors, gguf.
"""

import json
import pathlib
import sys

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

from fixture_gguf import write_gguf, write_gguf_gpt2
from fixture_models import (DTYPES, N_TOKENS, float64_logits, make_model, tokens,
                            write_expected, write_hf)


SIZES = dict(vocab_size=67, hidden_size=32, intermediate_size=44, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
             rms_norm_eps=1e-5, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2)


def llama_config(**changes):
    return transformers.LlamaConfig(**(SIZES | changes))


def qwen_config(version, **changes):
    kind = transformers.Qwen3Config if version == 3 else transformers.Qwen2Config
    return kind(**(SIZES | changes))


def gpt2_config(**changes):
    values = dict(vocab_size=67, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=1,
                  eos_token_id=2)
    values.update(changes)
    return transformers.GPT2Config(**values)


LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 64}

# A text of 52 tokens is four times the context of training.
LONG = dict(vocab_size=41, max_position_embeddings=13)
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
        "original_max_position_embeddings": 13, "beta_fast": 2.0, "beta_slow": 0.1}


def smollm3_config(**changes):
    values = dict(hidden_size=24, intermediate_size=28, num_hidden_layers=3, num_attention_heads=3,
                  num_key_value_heads=1, pad_token_id=None,
                  rope_parameters={"rope_type": "default", "rope_theta": 5000.0})
    return transformers.SmolLM3Config(**(SIZES | values | changes))


def phi3_config(**changes):
    values = dict(hidden_size=48, intermediate_size=20, num_attention_heads=3,
                  num_key_value_heads=1, pad_token_id=None)
    return transformers.Phi3Config(**(SIZES | values | changes))


def moe_config(kind, **changes):
    values = dict(hidden_size=32, intermediate_size=20, pad_token_id=None)
    return kind(**(SIZES | values | changes))


QWEN3_MOE = dict(head_dim=16, num_hidden_layers=3, moe_intermediate_size=12, num_experts=6,
                 num_experts_per_tok=3, norm_topk_prob=True)
QWEN2_MOE = dict(moe_intermediate_size=12, shared_expert_intermediate_size=28, num_experts=5,
                 num_experts_per_tok=2)
GLM4_MOE = dict(head_dim=16, num_hidden_layers=3, moe_intermediate_size=12, n_routed_experts=6,
                num_experts_per_tok=2, n_shared_experts=2, first_k_dense_replace=1,
                routed_scaling_factor=1.7, attention_bias=True)
OLMOE = dict(num_experts=7, num_experts_per_tok=3)

LONG_PHI3 = dict(
    vocab_size=41, max_position_embeddings=52, original_max_position_embeddings=13,
    tie_word_embeddings=True, rope_parameters={
        "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
        "short_factor": [1.0, 1.05, 1.1, 1.25, 1.4, 1.5],
        "long_factor": [1.0, 1.2, 1.7, 2.5, 4.0, 5.5]})

def gemma_config(version, **changes):
    values = dict(vocab_size=41, hidden_size=24, intermediate_size=28, num_attention_heads=3,
                  num_key_value_heads=1, head_dim=16, tie_word_embeddings=True, pad_token_id=0,
                  rms_norm_eps=1e-6)
    kind = {1: transformers.GemmaConfig, 2: transformers.Gemma2Config,
            3: transformers.Gemma3TextConfig}[version]
    return kind(**(SIZES | values | changes))


# A score scale that is not by the head size, and caps that most scores and logits come near.
GEMMA2 = dict(num_hidden_layers=3, query_pre_attn_scalar=20, sliding_window=5,
              attn_logit_softcapping=1.5, final_logit_softcapping=4.0)
GEMMA3 = dict(num_hidden_layers=7, query_pre_attn_scalar=20, sliding_window=5, rope_parameters={
    "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 70.0}})


def olmo_config(version, **changes):
    values = dict(vocab_size=41, hidden_size=36, intermediate_size=28, num_attention_heads=3,
                  num_key_value_heads=1, num_hidden_layers=3, pad_token_id=0)
    kind = transformers.Olmo3Config if version == 3 else transformers.Olmo2Config
    return kind(**(SIZES | values | changes))


YARN_OF_OLMO3 = {"rope_type": "yarn", "rope_theta": 3000.0, "factor": 4.0,
                 "original_max_position_embeddings": 16, "beta_fast": 2.0, "beta_slow": 0.1}
OLMO3 = dict(num_hidden_layers=5, sliding_window=5, max_position_embeddings=64, rope_parameters={
    "full_attention": YARN_OF_OLMO3 | {"attention_factor": 1.2079441541679836},
    "sliding_attention": {"rope_type": "default", "rope_theta": 3000.0}})


def granite_config(**changes):
    values = dict(vocab_size=41, embedding_multiplier=3.0, attention_multiplier=0.2,
                  residual_multiplier=0.4, logits_scaling=2.5)
    return transformers.GraniteConfig(**(SIZES | values | changes))


WITHOUT_RMS = {key: value for key, value in SIZES.items() if key != "rms_norm_eps"}


def gpt_neox_config(**changes):
    values = WITHOUT_RMS | dict(vocab_size=41, hidden_size=48, intermediate_size=28,
                                num_attention_heads=3, rotary_pct=0.25)
    del values["num_key_value_heads"]
    return transformers.GPTNeoXConfig(**(values | changes))


def phi_config(**changes):
    values = dict(vocab_size=41, hidden_size=60, intermediate_size=28, num_attention_heads=3,
                  num_key_value_heads=3, partial_rotary_factor=0.4)
    return transformers.PhiConfig(**(WITHOUT_RMS | values | changes))


def stablelm_config(**changes):
    values = dict(vocab_size=41, hidden_size=48, intermediate_size=28, num_attention_heads=3,
                  num_key_value_heads=1, use_qkv_bias=True)
    return transformers.StableLmConfig(**(WITHOUT_RMS | values | changes))


def falcon_config(**changes):
    values = WITHOUT_RMS | dict(vocab_size=41, hidden_size=36, num_attention_heads=3,
                                ffn_hidden_size=144, num_kv_heads=3, tie_word_embeddings=True)
    for key in ("num_key_value_heads", "intermediate_size"):
        del values[key]
    return transformers.FalconConfig(**(values | changes))


def starcoder2_config(**changes):
    values = dict(vocab_size=41, hidden_size=36, intermediate_size=28, num_attention_heads=3,
                  num_key_value_heads=1, tie_word_embeddings=True)
    return transformers.Starcoder2Config(**(WITHOUT_RMS | values | changes))


def cohere_config(version, **changes):
    values = dict(vocab_size=41, hidden_size=36, intermediate_size=28, num_attention_heads=3,
                  num_key_value_heads=1, logit_scale=0.3, tie_word_embeddings=True, pad_token_id=0)
    kind = transformers.Cohere2Config if version == 2 else transformers.CohereConfig
    return kind(**(WITHOUT_RMS | values | changes))


# name: (configuration, stored type, largest shard or None)
HF_MODELS = {
    "llama-mha-f32": (llama_config(num_key_value_heads=4), "f32", None),
    "llama-gqa-sharded-bf16": (llama_config(), "bf16", "8KB"),
    "llama-mqa-f16": (llama_config(num_key_value_heads=1), "f16", None),
    "llama-tied-bf16": (llama_config(tie_word_embeddings=True), "bf16", None),
    "llama-biases-f16": (llama_config(attention_bias=True, mlp_bias=True), "f16", None),
    "llama-rope-linear-f16": (llama_config(rope_parameters={
        "rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}), "f16", None),
    "llama-rope-llama3-bf16": (llama_config(rope_parameters=LLAMA3, head_dim=16), "bf16", None),
    "llama-head64-f16": (llama_config(num_attention_heads=2, num_key_value_heads=1, head_dim=64),
                         "f16", None),
    "llama-head80-f16": (llama_config(num_attention_heads=2, num_key_value_heads=1, head_dim=80),
                         "f16", None),
    "llama-head96-f16": (llama_config(num_attention_heads=2, num_key_value_heads=1, head_dim=96),
                         "f16", None),
    "llama-head128-f16": (llama_config(num_attention_heads=2, num_key_value_heads=1, head_dim=128),
                          "f16", None),
    "gpt2-f32": (gpt2_config(), "f32", None),
    "gpt2-untied-inner-f16": (gpt2_config(n_inner=52, tie_word_embeddings=False,
                                          activation_function="gelu"), "f16", None),
    "qwen2-tied-bf16": (qwen_config(2, tie_word_embeddings=True), "bf16", None),
    "qwen2-window-f16": (qwen_config(2, use_sliding_window=True, sliding_window=7,
                                     max_window_layers=1), "f16", None),
    "qwen3-head16-bf16": (qwen_config(3, head_dim=16), "bf16", None),
    "qwen3-head64-f16": (qwen_config(3, num_attention_heads=2, num_key_value_heads=1, head_dim=64),
                         "f16", None),
    "mistral-window-f16": (transformers.MistralConfig(
        sliding_window=7, head_dim=16, **SIZES), "f16", None),
    # Of another head size than the width over the heads, as Mistral Nemo and Small 3.
    "mistral-wide-heads-f16": (transformers.MistralConfig(**(SIZES | dict(
        hidden_size=40, head_dim=16, num_key_value_heads=1, sliding_window=None,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}))), "f16", None),
    "qwen2-yarn-f16": (qwen_config(2, **LONG, rope_parameters=YARN), "f16", None),
    "qwen3-yarn-attention-factor-bf16": (qwen_config(
        3, **LONG, head_dim=16, tie_word_embeddings=True,
        rope_parameters=YARN | {"attention_factor": 1.3}), "bf16", None),
    "qwen2-windows-listed-f16": (qwen_config(
        2, use_sliding_window=True, sliding_window=5, num_hidden_layers=3,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"]), "f16", None),
    "llama-yarn-mscale-f16": (llama_config(**(LONG | dict(
        head_dim=16, max_position_embeddings=52, rope_parameters=YARN | {
            "mscale": 1.2, "mscale_all_dim": 0.7, "beta_fast": 4.0, "beta_slow": 0.3,
            "truncate": False}))), "f16", None),
    "llama-dynamic-f16": (llama_config(**LONG, rope_parameters={
        "rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}), "f16", None),
    "smollm3-tied-f16": (smollm3_config(num_hidden_layers=5, tie_word_embeddings=True), "f16",
                         None),
    "smollm3-windows-bf16": (smollm3_config(no_rope_layers=[0, 1, 0], use_sliding_window=True,
                                            sliding_window=5), "bf16", None),
    "phi3-window-bf16": (phi3_config(num_key_value_heads=3, sliding_window=7), "bf16", None),
    "phi3-partial-f16": (phi3_config(rope_parameters={
        "rope_type": "default", "rope_theta": 250000.0, "partial_rotary_factor": 0.75}), "f16",
                         None),
    "phi3-longrope-f16": (phi3_config(**LONG_PHI3), "f16", None),
    "gemma-bf16": (gemma_config(1), "bf16", None),
    "gemma2-caps-f16": (gemma_config(2, **GEMMA2), "f16", None),
    "gemma3-two-bases-bf16": (gemma_config(3, **GEMMA3), "bf16", None),
    "gemma3-head256-f16": (gemma_config(
        3, head_dim=256, hidden_size=16, num_attention_heads=2, num_hidden_layers=2,
        sliding_window=7, layer_types=["sliding_attention", "full_attention"]), "f16", None),
    "gemma3-old-keys-f16": (gemma_config(3, **(GEMMA3 | dict(
        query_pre_attn_scalar=16,
        num_hidden_layers=4, sliding_window_pattern=3, final_logit_softcapping=4.0))), "f16", None),
    "olmo2-f16": (olmo_config(
        2, hidden_size=40, num_attention_heads=4, num_key_value_heads=2), "f16", None),
    "olmo3-yarn-bf16": (olmo_config(3, **OLMO3), "bf16", None),
    "granite-f16": (granite_config(), "f16", None),
    "gpt-neox-f16": (gpt_neox_config(), "f16", None),
    "gpt-neox-sequential-bf16": (gpt_neox_config(use_parallel_residual=False, rotary_pct=0.5),
                                 "bf16", None),
    "phi-f16": (phi_config(), "f16", None),
    "stablelm-bf16": (stablelm_config(), "bf16", None),
    "stablelm-parallel-f16": (stablelm_config(use_parallel_residual=True, use_qkv_bias=False),
                              "f16", None),
    "falcon-f16": (falcon_config(), "f16", None),
    "starcoder2-window-f16": (starcoder2_config(sliding_window=7), "f16", None),
    "cohere-bf16": (cohere_config(1), "bf16", None),
    "cohere-head-norms-f16": (cohere_config(1, use_qk_norm=True), "f16", None),
    "cohere2-f16": (cohere_config(2, num_hidden_layers=5, sliding_window=5), "f16", None),
    "mixtral-bf16": (moe_config(transformers.MixtralConfig, num_local_experts=5), "bf16", None),
    # As the class has it in memory: a tensor for all experts.
    "mixtral-stacked-f16": (moe_config(transformers.MixtralConfig, num_local_experts=4,
                                       num_experts_per_tok=3, sliding_window=7), "f16", None),
    # A block without experts between two with them.
    "qwen3-moe-f16": (moe_config(transformers.Qwen3MoeConfig, **QWEN3_MOE, mlp_only_layers=[1]),
                      "f16", None),
    "qwen3-moe-stacked-bf16": (moe_config(transformers.Qwen3MoeConfig, **(QWEN3_MOE | dict(
        norm_topk_prob=False, decoder_sparse_step=2))), "bf16", None),
    "qwen2-moe-f16": (moe_config(transformers.Qwen2MoeConfig, **QWEN2_MOE), "f16", None),
    "olmoe-bf16": (moe_config(transformers.OlmoeConfig, **OLMOE), "bf16", None),
    "glm4-moe-f16": (moe_config(transformers.Glm4MoeConfig, **GLM4_MOE), "f16", None),
    "glm4-moe-qk-norm-bf16": (moe_config(transformers.Glm4MoeConfig, **(GLM4_MOE | dict(
        use_qk_norm=True, attention_bias=False, norm_topk_prob=False, n_shared_experts=1,
        first_k_dense_replace=0, num_hidden_layers=2, partial_rotary_factor=1.0))), "bf16", None),
}

# Texts of other lengths than N_TOKENS, and of a second one: longrope chooses by the length.
TOKENS = {"qwen2-yarn-f16": 52, "qwen3-yarn-attention-factor-bf16": 52, "llama-dynamic-f16": 52,
          "llama-yarn-mscale-f16": 52, "phi3-longrope-f16": 52, "olmo3-yarn-bf16": 40}
SHORT_TOKENS = {"phi3-longrope-f16": 13}
# Written as older files have it: rope_theta and partial_rotary_factor outside the dictionary.
OLD_ROPE_TYPES = {"qwen2-yarn-f16": "yarn", "phi3-longrope-f16": "su"}
OLD_GEMMA3 = ("gemma3-old-keys-f16",)


def write_old_rope(path, rope_type):
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    if "original_max_position_embeddings" in config:  # Phi-3 has it outside alone
        rope.pop("original_max_position_embeddings")
    del rope["rope_type"]
    config["rope_scaling"] = {"type": rope_type} | rope
    path.write_text(json.dumps(config, indent=2) + "\n")


def write_old_gemma3(path):
    """Two bases outside the dictionary, a scaling of one of them, and the period of the layers."""
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    full = rope["full_attention"]
    config["rope_theta"] = full.pop("rope_theta")
    config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
    config["rope_scaling"] = full
    types = config.pop("layer_types")
    config.pop("_sliding_window_pattern", None)
    config["sliding_window_pattern"] = types.index("full_attention") + 1
    path.write_text(json.dumps(config, indent=2) + "\n")


# folder: (architecture, configuration, tokens)
GGUF_MODELS = {
    "gguf-qwen2-yarn": ("qwen2", qwen_config(2, **LONG, rope_parameters=YARN), 52),
    "gguf-smollm3": ("smollm3", smollm3_config(num_hidden_layers=5), N_TOKENS),
    "gguf-phi3-longrope": ("phi3", phi3_config(**LONG_PHI3), 52),
    "gguf-mixtral": ("llama", moe_config(transformers.MixtralConfig, num_local_experts=5),
                     N_TOKENS),
    "gguf-qwen3-moe": ("qwen3moe", moe_config(transformers.Qwen3MoeConfig, **QWEN3_MOE), N_TOKENS),
    "gguf-qwen2-moe": ("qwen2moe", moe_config(transformers.Qwen2MoeConfig, **QWEN2_MOE), N_TOKENS),
    "gguf-glm4-moe": ("glm4moe", moe_config(transformers.Glm4MoeConfig, **GLM4_MOE), N_TOKENS),
    "gguf-olmoe": ("olmoe", moe_config(transformers.OlmoeConfig, **OLMOE), N_TOKENS),
    "gguf-phi3-window": ("phi3", phi3_config(num_key_value_heads=3, sliding_window=7), N_TOKENS),
    "gguf-gemma": ("gemma", gemma_config(1), N_TOKENS),
    "gguf-gemma2": ("gemma2", gemma_config(2, **(GEMMA2 | {"query_pre_attn_scalar": 16})),
                    N_TOKENS),
    "gguf-gemma3": ("gemma3", gemma_config(3, **(GEMMA3 | {"query_pre_attn_scalar": 16})),
                    N_TOKENS),
    "gguf-olmo2": ("olmo2", olmo_config(2), N_TOKENS),
    "gguf-olmo3": ("olmo2", olmo_config(3, **(OLMO3 | dict(rope_parameters={
        "full_attention": YARN_OF_OLMO3,
        "sliding_attention": {"rope_type": "default", "rope_theta": 3000.0}}))), 40),
    "gguf-granite": ("granite", granite_config(), N_TOKENS),
    "gguf-gpt-neox": ("gptneox", gpt_neox_config(), N_TOKENS),
    "gguf-phi": ("phi2", phi_config(), N_TOKENS),
    "gguf-stablelm": ("stablelm", stablelm_config(), N_TOKENS),
    "gguf-stablelm-head-norms": ("stablelm", stablelm_config(
        use_parallel_residual=True, qk_layernorm=True), N_TOKENS),
    "gguf-falcon": ("falcon", falcon_config(), N_TOKENS),
    "gguf-starcoder2": ("starcoder2", starcoder2_config(), N_TOKENS),
    "gguf-cohere": ("command-r", cohere_config(1), N_TOKENS),
    "gguf-cohere2": ("cohere2", cohere_config(2, num_hidden_layers=5, sliding_window=5), N_TOKENS),
}


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else root / "tests/fixtures/models"
    ids = tokens(67, N_TOKENS)

    for seed, (name, (config, dtype, shard_size)) in enumerate(HF_MODELS.items()):
        model = make_model(config, DTYPES[dtype], seed)
        (out / name).mkdir(parents=True, exist_ok=True)
        own = tokens(config.vocab_size, TOKENS.get(name, N_TOKENS))
        write_expected(out / name / "expected.json", own, float64_logits(model, own))
        if name in SHORT_TOKENS:
            short = own[:SHORT_TOKENS[name]]
            write_expected(out / name / "expected_short.json", short, float64_logits(model, short))
        write_hf(out / name, model, DTYPES[dtype], shard_size)
        if name in OLD_ROPE_TYPES:
            write_old_rope(out / name / "config.json", OLD_ROPE_TYPES[name])
        if name in OLD_GEMMA3:
            write_old_gemma3(out / name / "config.json")

    # The divisors that converters write for llama3 scaling are the ratio of the two tables.
    config = llama_config(attention_bias=True, mlp_bias=True, head_dim=16, rope_parameters=LLAMA3)
    model = make_model(config, torch.float16, 100)
    (out / "gguf-llama-biases-rope-freqs").mkdir(parents=True, exist_ok=True)
    plain = 10000.0 ** (-np.arange(0, 16, 2) / 16)
    divisors = plain / model.model.rotary_emb.inv_freq.double().numpy()
    write_gguf(out / "gguf-llama-biases-rope-freqs/model.gguf", "llama", model, config, divisors)
    write_expected(out / "gguf-llama-biases-rope-freqs/expected.json", ids,
                   float64_logits(model, ids))

    for version in (2, 3):
        architecture = f"qwen{version}"
        model = make_model(qwen_config(version, **({"head_dim": 16} if version == 3 else {})),
                           torch.float16, 102 + version)
        (out / f"gguf-{architecture}").mkdir(parents=True, exist_ok=True)
        write_gguf(out / f"gguf-{architecture}/model.gguf", architecture, model, model.config)
        write_expected(out / f"gguf-{architecture}/expected.json", ids,
                       float64_logits(model, ids))

    for seed, (name, (architecture, config, n_tokens)) in enumerate(GGUF_MODELS.items()):
        model = make_model(config, torch.float16, 200 + seed)
        (out / name).mkdir(parents=True, exist_ok=True)
        write_gguf(out / name / "model.gguf", architecture, model, config)
        own = tokens(config.vocab_size, n_tokens)
        write_expected(out / name / "expected.json", own, float64_logits(model, own))

    config = gpt2_config()
    model = make_model(config, torch.float32, 101)
    (out / "gguf-gpt2").mkdir(parents=True, exist_ok=True)
    write_gguf_gpt2(out / "gguf-gpt2/model.gguf", model, config)
    write_expected(out / "gguf-gpt2/expected.json", ids, float64_logits(model, ids))

    # Names without their prefix, and a buffer that older files carry.
    model = make_model(llama_config(), torch.bfloat16, 102)
    (out / "llama-bare-names-bf16").mkdir(parents=True, exist_ok=True)
    write_expected(out / "llama-bare-names-bf16/expected.json", ids, float64_logits(model, ids))
    write_hf(out / "llama-bare-names-bf16", model, torch.bfloat16, None)
    tensors = {name.removeprefix("model."): value.contiguous()
               for name, value in model.state_dict().items()}
    tensors["layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    save_file(tensors, out / "llama-bare-names-bf16/model.safetensors")


if __name__ == "__main__":
    main()
