"""Writes models of transformers as GGUF files, with the names, the order of rows and the keys of llama.cpp's converter."""

import math

import gguf
import numpy as np

from fixture_models import finish


def to_pairs(weight, n_heads):
    """Rotary halves of each head to pairs, as GGUF files of Llama models have them."""
    head_dim = weight.shape[0] // n_heads
    halves = weight.reshape(n_heads, 2, head_dim // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


# Architectures whose rotary halves the converter makes pairs.
WITH_PAIRS = ("llama", "smollm3", "granite")
# Those that store 1 + w of norms.
WITH_OFFSET = ("gemma", "gemma2", "gemma3")
# Where transformers' "post_attention_layernorm" is behind attention.
SANDWICH = {"post_attention_layernorm": "post_attention_norm",
            "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm"}
WITH_POST_NORMS = ("gemma2", "gemma3", "olmo2")


OTHER_NAMES = {
    "attention.query_key_value": "attn_qkv", "self_attention.query_key_value": "attn_qkv",
    "attention.dense": "attn_output", "self_attention.dense": "attn_output",
    "self_attn.dense": "attn_output", "mlp.dense_h_to_4h": "ffn_up",
    "mlp.dense_4h_to_h": "ffn_down", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down",
    "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}


def stack_head_norms(weights, config):
    for layer in range(config.num_hidden_layers):
        for kind in ("q", "k"):
            at = f"model.layers.{layer}.self_attn.{kind}_layernorm.norms."
            norms = [name for name in weights if name.startswith(at)]
            stacked = np.stack([weights.pop(f"{at}{i}.weight") for i in range(len(norms))])
            weights[f"model.layers.{layer}.self_attn.{kind}_norm.weight"] = stacked


def add_features(writer, architecture, config):
    partial = (getattr(config, "rope_parameters", None) or {}).get("partial_rotary_factor")
    if partial and architecture != "phi3":
        head_dim = config.hidden_size // config.num_attention_heads
        writer.add_rope_dimension_count(int(head_dim * partial))
    if architecture == "gptneox":
        writer.add_parallel_residual(config.use_parallel_residual)
    if architecture in ("command-r", "cohere2"):
        writer.add_logit_scale(config.logit_scale)
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    if architecture == "cohere2":
        writer.add_sliding_window(config.sliding_window)
    if architecture in ("gemma2", "gemma3") or hasattr(config, "sliding_window") and \
            architecture == "olmo2":
        writer.add_sliding_window(config.sliding_window)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if architecture == "olmo2" and hasattr(config, "sliding_window"):
        writer.add_sliding_window_pattern([t == "sliding_attention" for t in config.layer_types])
    if architecture == "granite":
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)


def add_rope(writer, architecture, config):
    rope = config.rope_parameters
    if "full_attention" in rope:
        sliding, rope = rope["sliding_attention"], rope["full_attention"]
        if architecture == "gemma3" and sliding["rope_theta"] != 10000:
            writer.add_rope_freq_base_swa(sliding["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if rope["rope_theta"] != 10000:
        writer.add_rope_freq_base(rope["rope_theta"])
    if architecture == "glm4moe":
        writer.add_rope_dimension_count(int(head_dim * rope["partial_rotary_factor"]))
    if architecture == "phi3":
        writer.add_rope_dimension_count(int(head_dim * rope["partial_rotary_factor"]))
        writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
        writer.add_sliding_window(config.sliding_window or 0)
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    if rope["rope_type"] == "longrope":
        scale = config.max_position_embeddings / config.original_max_position_embeddings
        writer.add_rope_scaling_attn_factors(
            math.sqrt(1 + math.log(scale) / math.log(config.original_max_position_embeddings)))
        for kind in ("long", "short"):
            writer.add_tensor(f"rope_factors_{kind}.weight",
                              np.array(rope[f"{kind}_factor"], dtype=np.float32))


def add_experts(writer, weights, hf, ours):
    if hf + "gate_up_proj" not in weights:
        return
    gate, up = np.split(weights[hf + "gate_up_proj"], 2, axis=1)
    for name, value in (("gate", gate), ("up", up), ("down", weights[hf + "down_proj"])):
        writer.add_tensor(f"{ours}ffn_{name}_exps.weight",
                          np.ascontiguousarray(value.astype(np.float16)))


def add_moe(writer, architecture, config):
    writer.add_expert_count(getattr(config, "num_local_experts", None) or config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    if architecture.startswith("qwen"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if architecture == "glm4moe":
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_count(config.n_shared_experts)
        writer.add_leading_dense_block_count(config.first_k_dense_replace)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_weights_norm(config.norm_topk_prob)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if architecture == "qwen2moe":
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)


def write_gguf(path, architecture, model, config, rope_divisors=None):
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(getattr(config, "intermediate_size", None) or
                                   config.ffn_hidden_size)
    writer.add_head_count(config.num_attention_heads)
    n_kv_heads = 1 if architecture == "falcon" else getattr(
        config, "num_key_value_heads", config.num_attention_heads)
    writer.add_head_count_kv(n_kv_heads)
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
        if architecture != "glm4moe":
            writer.add_rope_dimension_count(config.head_dim)
    if hasattr(config, "rms_norm_eps"):
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    else:
        for key in ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"):
            if hasattr(config, key):
                writer.add_layer_norm_eps(getattr(config, key))
    if hasattr(config, "num_experts_per_tok"):
        add_moe(writer, architecture, config)
    if rope_divisors is None:
        add_rope(writer, architecture, config)
    add_features(writer, architecture, config)
    names = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
             "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
             "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
             "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
             "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
             "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up",
             "mlp.gate": "ffn_gate_inp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
             "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
             "mlp.shared_expert.up_proj": "ffn_up_shexp",
             "mlp.shared_expert.down_proj": "ffn_down_shexp",
             "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
             "mlp.shared_experts.up_proj": "ffn_up_shexp",
             "mlp.shared_experts.down_proj": "ffn_down_shexp"}
    if architecture == "glm4moe":
        names["post_attention_layernorm"] = "post_attention_norm"
    if architecture in WITH_POST_NORMS:
        names |= SANDWICH
    names |= OTHER_NAMES
    heads = {"attn_q": config.num_attention_heads, "attn_k": n_kv_heads}
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    if architecture == "stablelm" and config.qk_layernorm:
        stack_head_norms(weights, config)
    outer = {"model.embed_tokens": "token_embd", "gpt_neox.embed_in": "token_embd",
             "transformer.word_embeddings": "token_embd", "model.norm": "output_norm",
             "gpt_neox.final_layer_norm": "output_norm", "transformer.ln_f": "output_norm",
             "model.final_layernorm": "output_norm"}
    if not config.tie_word_embeddings:
        outer |= {"lm_head": "output", "embed_out": "output"}
    tensors = {}
    for part in ("weight", "bias"):
        for hf, ours in outer.items():
            if f"{hf}.{part}" in weights:
                tensors[f"{ours}.{part}"] = f"{hf}.{part}"
        for layer in range(config.num_hidden_layers):
            for hf, ours in names.items():
                for prefix in ("model.layers", "gpt_neox.layers", "transformer.h"):
                    if f"{prefix}.{layer}.{hf}.{part}" in weights:
                        tensors[f"blk.{layer}.{ours}.{part}"] = f"{prefix}.{layer}.{hf}.{part}"
    for layer in range(config.num_hidden_layers):
        correction = f"model.layers.{layer}.mlp.gate.e_score_correction_bias"
        if correction in weights:
            tensors[f"blk.{layer}.exp_probs_b.bias"] = correction
        add_experts(writer, weights, f"model.layers.{layer}.mlp.experts.", f"blk.{layer}.")
    for name, hf in tensors.items():
        value = weights[hf]
        n_heads = heads.get(name.split(".")[2]) if name.startswith("blk.") else None
        value = to_pairs(value, n_heads) if n_heads and architecture in WITH_PAIRS else value
        if architecture == "gptneox" and "attn_qkv" in name:  # by head to queries, keys, values
            by_head = value.reshape(config.num_attention_heads, 3, -1, *value.shape[1:])
            value = by_head.swapaxes(0, 1).reshape(value.shape)
        if architecture in WITH_OFFSET and name.endswith("norm.weight"):
            value = value + np.float32(1)
        is_small = "norm" in name or "_inp" in name
        stored = np.float16 if value.ndim == 2 and not is_small else np.float32
        value = value[0] if "inp_shexp" in name else value
        writer.add_tensor(name, np.ascontiguousarray(value.astype(stored)))
    if rope_divisors is not None:
        writer.add_tensor("rope_freqs.weight", rope_divisors.astype(np.float32))
    finish(writer)


def write_gguf_gpt2(path, model, config):
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_context_length(config.n_positions)
    writer.add_embedding_length(config.n_embd)
    writer.add_block_count(config.n_layer)
    writer.add_feed_forward_length(4 * config.n_embd)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
    names = {"ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output",
             "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    writer.add_tensor("token_embd.weight", weights["transformer.wte.weight"])
    writer.add_tensor("position_embd.weight", weights["transformer.wpe.weight"])
    for layer in range(config.n_layer):
        for hf, ours in names.items():
            weight = weights[f"transformer.h.{layer}.{hf}.weight"]
            transposed = np.ascontiguousarray(weight.T)  # Conv1D keeps [in, out]
            writer.add_tensor(f"blk.{layer}.{ours}.weight", transposed)
            writer.add_tensor(f"blk.{layer}.{ours}.bias",
                              weights[f"transformer.h.{layer}.{hf}.bias"])
    writer.add_tensor("output_norm.weight", weights["transformer.ln_f.weight"])
    writer.add_tensor("output_norm.bias", weights["transformer.ln_f.bias"])
    finish(writer)
