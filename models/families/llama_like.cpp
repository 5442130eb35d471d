#include "models/families/llama_like.h"

#include <cmath>

#include "models/config_reader.h"

namespace minfer {
namespace {

// The names of what rotary embeddings have been said by. Others, as those of the scalings that are
// refused by their type, or settings for each type of layer, are not understood.
void refuse_other_rope_keys(const Metadata& metadata, const std::string& root) {
  for (const std::string& name : names_below(metadata, root)) {
    const std::string key = cat(root, ".", name);
    const bool is_value = metadata.has(key);
    MINFER_REQUIRE(Input, is_value, "key ", key, " is an object: not supported");
    require_supported(
        root, name,
        {"rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor",
         "original_max_position_embeddings", "partial_rotary_factor"});
  }
}

// "rope_scaling" of older files, "rope_parameters" of newer ones; transformers takes the first
// where both are there.
std::string rope_root(const Metadata& metadata) {
  return names_below(metadata, "rope_scaling").empty() ? "rope_parameters" : "rope_scaling";
}

RopeSpec read_rope(const Metadata& metadata, int64_t head_dim) {
  RopeSpec rope{.rotary_dim = head_dim};
  const std::string root = rope_root(metadata), at = root + ".";
  std::string theta_key = at + "rope_theta";
  if (!metadata.has(theta_key)) theta_key = "rope_theta";
  if (!metadata.has(theta_key)) theta_key = "rope_parameters.rope_theta";
  rope.theta = read_rope_theta(metadata, theta_key);
  std::string type_key = at + "rope_type";
  if (!metadata.has(type_key)) type_key = at + "type";  // its first name
  const std::string type = metadata.text_or(type_key, "default");
  require_supported(type_key, type, {"default", "linear", "llama3"});
  for (const char* each : {"rope_scaling", "rope_parameters"}) {
    refuse_other_rope_keys(metadata, each);
  }
  if (type == "default") return rope;

  rope.factor = read_rope_factor(metadata, at + "factor");
  if (type == "linear") {
    rope.scaling = RopeScaling::Linear;
    return rope;
  }
  rope.scaling = RopeScaling::Llama3;
  rope.low_freq_factor = metadata.number(at + "low_freq_factor", 1e-6, 1e6);
  rope.high_freq_factor = metadata.number(at + "high_freq_factor", 1e-6, 1e6);
  MINFER_REQUIRE(Input, rope.low_freq_factor < rope.high_freq_factor,
                 "rope scaling: low_freq_factor ", rope.low_freq_factor,
                 " is not below high_freq_factor ", rope.high_freq_factor);
  // What transformers takes, in this order.
  const char* const outside = "original_max_position_embeddings";
  const std::string inside = at + outside;
  const std::string key = metadata.has(outside)  ? outside
                          : metadata.has(inside) ? inside
                                                 : "max_position_embeddings";
  rope.original_seq_len = metadata.integer(key, 1, int64_t{1} << 31);
  return rope;
}

RopeSpec read_gguf_rope(const Metadata& keys, const std::string& prefix, int64_t head_dim) {
  RopeSpec rope;
  rope.theta = read_rope_theta(keys, prefix + "rope.freq_base");
  rope.rotary_dim = keys.integer_or(prefix + "rope.dimension_count", head_dim, 2, head_dim);
  MINFER_REQUIRE(Input, rope.rotary_dim % 2 == 0, "key ", prefix, "rope.dimension_count is ",
                 rope.rotary_dim, ", expected an even number");

  const std::string type_key = prefix + "rope.scaling.type";
  const std::string type = keys.text_or(type_key, "linear");
  require_supported(type_key, type, {"none", "linear"});
  std::string factor_key = prefix + "rope.scaling.factor";
  if (!keys.has(factor_key)) factor_key = prefix + "rope.scale_linear";  // its first name
  if (type == "none" || !keys.has(factor_key)) return rope;
  rope.scaling = RopeScaling::Linear;
  rope.factor = read_rope_factor(keys, factor_key);
  return rope;
}

void set_rope(ModelSpec& spec, RopeSpec rope) {
  spec.ropes = {std::move(rope)};
  for (LayerSpec& layer : spec.layers) layer.rope = 0;
}

}  // namespace

void require_layer_types(const Metadata& config, std::string_view type) {
  if (!config.has("layer_types")) return;
  for (const std::string& each : config.texts("layer_types")) {
    require_supported("layer_types", each, {type});
  }
}

void set_qwen_windows(ModelSpec& spec, const Metadata& config) {
  if (!config.boolean_or("use_sliding_window", false)) {
    return require_layer_types(config, "full_attention");
  }
  const std::string key = "sliding_window", types = "layer_types";
  const int64_t window =
      config.has(key) ? read_window(config, key, spec.trained_seq_len) : int64_t{4096};
  const int64_t n_full = config.integer_or("max_window_layers", 28, 0, int64_t{1} << 31);
  const bool has_types = config.has(types);
  MINFER_REQUIRE(Input, !has_types || std::ssize(config.texts(types)) == spec.n_layers(), "key ",
                 types, " has ", config.as_text(types), ", expected one for each of ",
                 spec.n_layers(), " layers");
  for (int64_t i = 0; i < spec.n_layers(); ++i) {
    bool slides = i >= n_full;
    if (has_types) {
      const std::string& type = config.texts(types)[static_cast<size_t>(i)];
      require_supported(types, type, {"full_attention", "sliding_attention"});
      slides = type == "sliding_attention";
    }
    if (slides) spec.layers[static_cast<size_t>(i)].window = window;
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
                               .norm_eps = 1e-6});
  spec.tied_output = config.boolean_or("tie_word_embeddings", defaults.tied_output);
  require_supported("hidden_act", config.text_or("hidden_act", "silu"), {"silu", "swish"});
  const bool attention_bias = config.boolean_or("attention_bias", false);
  set_biases(spec, attention_bias, attention_bias, config.boolean_or("mlp_bias", false));
  const int64_t head_dim = spec.layer(0).head_dim;
  set_rope(spec, read_rope(config, head_dim));
  refuse_unless_neutral(config, "",
                        {{"partial_rotary_factor", 1},
                         {"rope_parameters.partial_rotary_factor", 1},
                         {"rope_scaling.partial_rotary_factor", 1},
                         {"num_local_experts", 0},
                         {"num_experts", 0},
                         {"n_routed_experts", 0},
                         {"attention_multiplier", 1 / std::sqrt(double(head_dim))},
                         {"embedding_multiplier", 1},
                         {"residual_multiplier", 1},
                         {"logits_scaling", 1},
                         {"logit_scale", 1},
                         {"attn_logit_softcapping", 0},
                         {"final_logit_softcapping", 0},
                         {"clip_qkv", 0},
                         {"use_qk_norm", 0},
                         {"alibi", 0}});
  return spec;
}

ModelSpec read_gguf_sizes(const Metadata& keys, std::string_view architecture,
                          std::string_view norm_eps) {
  const std::string prefix = cat(architecture, ".");
  ModelSpec spec = read_sizes(
      keys,
      {prefix + "embedding_length", prefix + "feed_forward_length", prefix + "block_count",
       prefix + "attention.head_count", prefix + "attention.head_count_kv",
       prefix + "attention.key_length", prefix + "context_length", cat(prefix, norm_eps)},
      {});
  refuse_sliding_window(keys, prefix + "attention.sliding_window", spec.trained_seq_len);
  const auto head_dim = double(spec.layer(0).head_dim);
  refuse_unless_neutral(keys, prefix,
                        {{"attention.value_length", head_dim},
                         {"expert_count", 0},
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
                         {"embedding_scale", 1},
                         {"rope.scaling.attn_factor", 1}});
  return spec;
}

ModelSpec read_gguf_llama_like(const TensorSource& source, const Metadata& keys,
                               std::string_view architecture) {
  const std::string prefix = cat(architecture, ".");
  ModelSpec spec = read_gguf_sizes(keys, architecture, "attention.layer_norm_rms_epsilon");
  set_rope(spec, read_gguf_rope(keys, prefix, spec.layer(0).head_dim));
  for (const std::string name : {"rope_factors_long.weight", "rope_factors_short.weight"}) {
    MINFER_REQUIRE(Input, source.find(name) == nullptr, "tensor ", name,
                   ": longrope scaling is not supported (supported: none, linear, "
                   "rope_freqs.weight)");
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
  names.modules.insert(names.modules.end(), more.begin(), more.end());
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
  names.modules.insert(names.modules.end(), more.begin(), more.end());
  return names;
}

}  // namespace minfer
