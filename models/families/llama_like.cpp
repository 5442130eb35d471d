#include "models/families/llama_like.h"

#include <cmath>

#include "models/config_reader.h"

namespace minfer {
namespace {

// Windows of the layers by their types.
void set_typed_windows(ModelSpec& spec, const Metadata& config, int64_t window) {
  const std::string key = "layer_types";
  const std::vector<std::string>& types = config.texts(key);
  MINFER_REQUIRE(Input, std::ssize(types) == spec.n_layers(), "key ", key, " has ",
                 config.as_text(key), ", expected one for each of ", spec.n_layers(), " layers");
  for (size_t i = 0; i < types.size(); ++i) {
    require_supported(key, types[i], {"full_attention", "sliding_attention"});
    if (types[i] == "sliding_attention") spec.layers[i].window = window;
  }
}

// Layers without rotation: those whose entry of no_rope_layers is 0, or without that list every
// no_rope_layer_interval-th.
void set_layers_without_rope(ModelSpec& spec, const Metadata& config) {
  const std::string key = "no_rope_layers";
  if (!config.has(key)) {
    return unrotate_every(spec, config.integer_or("no_rope_layer_interval", 4, 1, 1 << 20));
  }
  const std::vector<int64_t>& rotate = config.integers(key);
  MINFER_REQUIRE(Input, std::ssize(rotate) >= spec.n_layers(), "key ", key, " has ",
                 config.as_text(key), ", expected one for each of ", spec.n_layers(), " layers");
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    MINFER_REQUIRE(Input, rotate[i] == 0 || rotate[i] == 1, "key ", key, " has ",
                   config.as_text(key), ", expected 0 and 1");
    if (rotate[i] == 0) spec.layers[i].rope = -1;
  }
}

}  // namespace

void require_layer_types(const Metadata& config, std::string_view type) {
  if (!config.has("layer_types")) return;
  for (const std::string& each : config.texts("layer_types")) {
    require_supported("layer_types", each, {type});
  }
}

void set_flagged_windows(ModelSpec& spec, const Metadata& config, int64_t fallback,
                         const std::function<bool(int64_t)>& slides) {
  if (!config.boolean_or("use_sliding_window", false)) {
    return require_layer_types(config, "full_attention");
  }
  const std::string key = "sliding_window";
  const bool is_null = config.nulls.contains(key);
  const int64_t window = config.has(key) ? read_window(config, key, spec.trained_seq_len)
                         : is_null       ? 0
                                         : fallback;
  if (config.has("layer_types")) return set_typed_windows(spec, config, window);
  for (int64_t i = 0; i < spec.n_layers(); ++i) {
    if (slides(i)) spec.layers[static_cast<size_t>(i)].window = window;
  }
}

void set_qwen_windows(ModelSpec& spec, const Metadata& config) {
  const int64_t n_full = config.integer_or("max_window_layers", 28, 0, int64_t{1} << 31);
  set_flagged_windows(spec, config, 4096, [&](int64_t layer) { return layer >= n_full; });
}

void unrotate_every(ModelSpec& spec, int64_t interval) {
  for (int64_t i = interval - 1; i < spec.n_layers(); i += interval) {
    spec.layers[static_cast<size_t>(i)].rope = -1;
  }
}

void set_biases(ModelSpec& spec, bool qkv, bool attn_out, bool ffn) {
  for (LayerSpec& layer : spec.layers) {
    layer.qkv_bias = qkv;
    layer.attn_out_bias = attn_out;
    layer.ffn_bias = ffn;
  }
}

ModelSpec read_hf_llama_like(const Metadata& config, const HfDefaults& defaults) {
  const SizeKeys keys = {
      "hidden_size",         "intermediate_size", "num_hidden_layers",       "num_attention_heads",
      "num_key_value_heads", "head_dim",          "max_position_embeddings", "rms_norm_eps"};
  ModelSpec spec = read_sizes(config, keys,
                              {.n_kv_heads = defaults.n_kv_heads,
                               .head_dim = defaults.head_dim,
                               .trained_seq_len = defaults.trained_seq_len,
                               .norm_eps = defaults.norm_eps});
  spec.tied_output = config.boolean_or("tie_word_embeddings", defaults.tied_output);
  require_supported("hidden_act", config.text_or("hidden_act", "silu"), {"silu", "swish"});
  const bool attention_bias = config.boolean_or("attention_bias", false);
  set_biases(spec, attention_bias, attention_bias, config.boolean_or("mlp_bias", false));
  const int64_t head_dim = spec.layer(0).head_dim;
  set_rope(spec, read_hf_rope(config, head_dim, defaults.rope));
  if (!defaults.rope.partial) {
    refuse_unless_neutral(config, "",
                          {{"partial_rotary_factor", 1},
                           {"rope_parameters.partial_rotary_factor", 1},
                           {"rope_scaling.partial_rotary_factor", 1}});
  }
  if (defaults.layers_without_rope) {
    set_layers_without_rope(spec, config);
  } else {
    for (const char* key : {"no_rope_layers", "no_rope_layer_interval"}) {
      require_absent(config, key);
    }
  }
  if (!defaults.has_experts) {
    refuse_unless_neutral(config, "",
                          {{"num_local_experts", 0}, {"num_experts", 0}, {"n_routed_experts", 0}});
  }
  if (!defaults.has_qk_norm_key) refuse_unless_neutral(config, "", {{"use_qk_norm", 0}});
  refuse_unless_neutral(config, "",
                        {{"attention_multiplier", 1 / std::sqrt(double(head_dim))},
                         {"embedding_multiplier", 1},
                         {"residual_multiplier", 1},
                         {"logits_scaling", 1},
                         {"logit_scale", 1},
                         {"attn_logit_softcapping", 0},
                         {"final_logit_softcapping", 0},
                         {"clip_qkv", 0},
                         {"lm_head_bias", 0},
                         {"full_attn_mod", 1},
                         {"interpolate_factor", 1},
                         {"alibi", 0}});
  return spec;
}

ModelSpec read_gguf_sizes(const Metadata& keys, std::string_view architecture,
                          std::string_view norm_eps, bool has_experts) {
  const std::string prefix = cat(architecture, ".");
  ModelSpec spec = read_sizes(
      keys,
      {prefix + "embedding_length", prefix + "feed_forward_length", prefix + "block_count",
       prefix + "attention.head_count", prefix + "attention.head_count_kv",
       prefix + "attention.key_length", prefix + "context_length", cat(prefix, norm_eps)},
      {});
  const auto head_dim = double(spec.layer(0).head_dim);
  if (!has_experts) refuse_unless_neutral(keys, prefix, {{"expert_count", 0}});
  refuse_unless_neutral(keys, prefix,
                        {{"attention.value_length", head_dim},
                         {"attention.causal", 1},
                         {"attention.scale", 1 / std::sqrt(head_dim)},
                         {"attention.clamp_kqv", 0},
                         {"attention.max_alibi_bias", 0},
                         {"attn_logit_softcapping", 0},
                         {"final_logit_softcapping", 0},
                         {"use_parallel_residual", 0},
                         {"pooling_type", 0},
                         {"logit_scale", 1},
                         {"residual_scale", 1},
                         {"embedding_scale", 1}});
  return spec;
}

ModelSpec read_gguf_llama_like(const TensorSource& source, const Metadata& keys,
                               std::string_view architecture, GgufWindow windows,
                               bool has_experts) {
  const std::string prefix = cat(architecture, "."), key = prefix + "attention.sliding_window";
  ModelSpec spec =
      read_gguf_sizes(keys, architecture, "attention.layer_norm_rms_epsilon", has_experts);
  set_rope(spec, read_gguf_rope(source, keys, prefix, spec.layer(0).head_dim));
  if (windows == GgufWindow::None) refuse_sliding_window(keys, key, spec.trained_seq_len);
  if (windows == GgufWindow::AllLayers) {
    const int64_t window = read_window(keys, key, spec.trained_seq_len);
    for (LayerSpec& layer : spec.layers) layer.window = window;
  }
  return spec;
}

WeightNames llama_hf_names(std::vector<std::pair<WeightRole, std::string_view>> more) {
  WeightNames names = {.prefix = "model.",
                       .layers = "layers.",
                       .modules = {{WeightRole::Embedding, "embed_tokens"},
                                   {WeightRole::AttnNorm, "input_layernorm"},
                                   {WeightRole::Wq, "self_attn.q_proj"},
                                   {WeightRole::Wk, "self_attn.k_proj"},
                                   {WeightRole::Wv, "self_attn.v_proj"},
                                   {WeightRole::Wo, "self_attn.o_proj"},
                                   {WeightRole::FfnNorm, "post_attention_layernorm"},
                                   {WeightRole::WGate, "mlp.gate_proj"},
                                   {WeightRole::WUp, "mlp.up_proj"},
                                   {WeightRole::WDown, "mlp.down_proj"},
                                   {WeightRole::OutputNorm, "norm"},
                                   {WeightRole::Output, "lm_head"}}};
  names.modules.insert(names.modules.begin(), more.begin(), more.end());
  return names;
}

WeightNames llama_gguf_names(std::vector<std::pair<WeightRole, std::string_view>> more) {
  WeightNames names = {.prefix = "",
                       .layers = "blk.",
                       .modules = {{WeightRole::Embedding, "token_embd"},
                                   {WeightRole::AttnNorm, "attn_norm"},
                                   {WeightRole::Wq, "attn_q"},
                                   {WeightRole::Wk, "attn_k"},
                                   {WeightRole::Wv, "attn_v"},
                                   {WeightRole::Wo, "attn_output"},
                                   {WeightRole::FfnNorm, "ffn_norm"},
                                   {WeightRole::WGate, "ffn_gate"},
                                   {WeightRole::WUp, "ffn_up"},
                                   {WeightRole::WDown, "ffn_down"},
                                   {WeightRole::OutputNorm, "output_norm"},
                                   {WeightRole::Output, "output"}}};
  names.modules.insert(names.modules.begin(), more.begin(), more.end());
  return names;
}

}  // namespace minfer
