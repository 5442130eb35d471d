#include "models/families/llama_like.h"

#include <algorithm>
#include <cmath>

#include "models/config_reader.h"

namespace minfer {
namespace {

void refuse_all_but(const std::vector<std::string_view>& own_keys, const Metadata& metadata,
                    const std::string& prefix, std::vector<NeutralKey> keys) {
  std::erase_if(keys,
                [&](const NeutralKey& key) { return std::ranges::count(own_keys, key.key) > 0; });
  refuse_unless_neutral(metadata, prefix, keys);
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

// Where linear scaling stands beside the context that it stretches, as in Vicuna's long models,
// this key has the one that results.
void extend_by_sequence_length(ModelSpec& spec, const Metadata& config) {
  const RopeSpec& rope = spec.ropes.front();
  const char* const key = "max_sequence_length";
  if (rope.scaling != RopeScaling::Linear || !config.has(key)) return;
  const auto stretched = static_cast<int64_t>(
      std::min(rope.factor * static_cast<double>(spec.trained_seq_len), 2147483648.0));
  const int64_t said = config.integer(key, 1, int64_t{1} << 31);
  spec.trained_seq_len = std::max(spec.trained_seq_len, std::min(said, stretched));
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
  const bool is_listed = config.has("layer_types");
  const std::vector<bool> listed =
      is_listed ? sliding_layers(spec, config, 1) : std::vector<bool>();
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    if (is_listed ? listed[i] : slides(static_cast<int64_t>(i))) spec.layers[i].window = window;
  }
}

std::vector<bool> sliding_layers(const ModelSpec& spec, const Metadata& config, int64_t period) {
  const std::string key = "layer_types";
  std::vector<bool> slides;
  if (!config.has(key)) {
    for (int64_t i = 0; i < spec.n_layers(); ++i) slides.push_back(i % period < period - 1);
    return slides;
  }
  const std::vector<std::string>& types = config.texts(key);
  MINFER_REQUIRE(Input, std::ssize(types) == spec.n_layers(), "key ", key, " has ",
                 config.as_text(key), ", expected one for each of ", spec.n_layers(), " layers");
  for (const std::string& type : types) {
    require_supported(key, type, {"full_attention", "sliding_attention"});
    slides.push_back(type == "sliding_attention");
  }
  return slides;
}

std::vector<bool> gguf_sliding_layers(const ModelSpec& spec, const Metadata& keys,
                                      const std::string& prefix, int64_t period) {
  const std::string key = prefix + "attention.sliding_window_pattern";
  const auto found = keys.all().find(key);
  if (found != keys.all().end() && std::holds_alternative<std::vector<bool>>(found->second)) {
    const std::vector<bool>& slides = keys.booleans(key);
    MINFER_REQUIRE(Input, std::ssize(slides) == spec.n_layers(), "key ", key, " has ",
                   keys.as_text(key), ", expected one for each of ", spec.n_layers(), " layers");
    return slides;
  }
  return sliding_layers(spec, {}, keys.integer_or(key, period, 1, 1 << 20));
}

void set_layer_types(Metadata& config, const ModelSpec& spec,
                     const std::function<bool(const LayerSpec&)>& slides) {
  std::vector<std::string> types;
  for (const LayerSpec& layer : spec.layers) {
    types.push_back(slides(layer) ? "sliding_attention" : "full_attention");
  }
  config.set("layer_types", types);
  config.set("sliding_window", window_of_file(spec));
}

void set_gguf_windows(Metadata& keys, const std::string& prefix, const ModelSpec& spec,
                      const std::function<bool(const LayerSpec&)>& slides, int64_t period) {
  keys.set(prefix + "attention.sliding_window", static_cast<uint64_t>(window_of_file(spec)));
  std::vector<bool> pattern;
  for (const LayerSpec& layer : spec.layers) pattern.push_back(slides(layer));
  if (pattern == sliding_layers(spec, {}, period)) return;
  keys.set(prefix + "attention.sliding_window_pattern", std::move(pattern));
}

int64_t window_of_file(const ModelSpec& spec) {
  int64_t window = 0;
  for (const LayerSpec& layer : spec.layers) window = std::max(window, layer.window);
  return window > 0 ? window : spec.trained_seq_len;
}

void set_windows(ModelSpec& spec, const Metadata& metadata, const std::string& key,
                 int64_t fallback, const std::vector<bool>& slides) {
  MINFER_REQUIRE(Input, !metadata.nulls.contains(key), "key ", key,
                 " is null: not supported (supported: a number of positions)");
  int64_t window = fallback;
  if (metadata.has(key)) window = read_window(metadata, key, spec.trained_seq_len);
  for (size_t i = 0; i < slides.size(); ++i) {
    if (slides[i] && window < spec.trained_seq_len) spec.layers[i].window = window;
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

void set_layer_norms(ModelSpec& spec, bool has_bias) {
  spec.edges.output_norm = NormKind::Layer;
  spec.edges.output_norm_bias = has_bias;
  for (LayerSpec& layer : spec.layers) {
    layer.norm = NormKind::Layer;
    layer.norm_bias = has_bias;
  }
}

void set_parallel(ModelSpec& spec, bool shared_norm) {
  for (LayerSpec& layer : spec.layers) {
    layer.parallel_residual = true;
    layer.shared_norm = shared_norm;
  }
}

void set_plain_ffn(ModelSpec& spec, Activation gelu) {
  for (LayerSpec& layer : spec.layers) {
    layer.gated = false;
    layer.activation = gelu;
  }
}

void set_layer_norm_keys(Metadata& config, const ModelSpec& spec) {
  const LayerSpec& layer = spec.layer(0);
  config.set("layer_norm_eps", double{layer.norm_eps});
  config.set("partial_rotary_factor", static_cast<double>(spec.ropes.front().rotary_dim) /
                                          static_cast<double>(layer.head_dim));
}

Activation read_gelu(const Metadata& config, const std::string& key, const std::string& fallback) {
  const std::string name = config.text_or(key, fallback);
  require_supported(key, name, {"gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast"});
  return name == "gelu" ? Activation::GeluErf : Activation::GeluTanh;
}

ModelSpec read_hf_llama_like(const Metadata& config, const HfDefaults& defaults) {
  const SizeKeys keys = {"hidden_size",
                         "intermediate_size",
                         "num_hidden_layers",
                         "num_attention_heads",
                         "num_key_value_heads",
                         "head_dim",
                         "max_position_embeddings",
                         std::string(defaults.norm_eps_key)};
  ModelSpec spec = read_sizes(config, keys,
                              {.n_kv_heads = defaults.n_kv_heads,
                               .head_dim = defaults.head_dim,
                               .trained_seq_len = defaults.trained_seq_len,
                               .norm_eps = defaults.norm_eps});
  spec.tied_output = config.boolean_or("tie_word_embeddings", defaults.tied_output);
  if (!defaults.own_activation) {
    require_supported("hidden_act", config.text_or("hidden_act", "silu"), {"silu", "swish"});
  }
  const bool attention_bias = config.boolean_or("attention_bias", defaults.attention_bias);
  set_biases(spec, attention_bias, attention_bias, config.boolean_or("mlp_bias", false));
  const int64_t head_dim = spec.layer(0).head_dim;
  if (!defaults.own_ropes) {
    set_rope(spec, read_hf_rope(config, head_dim, defaults.rope));
    extend_by_sequence_length(spec, config);
  }
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
  refuse_all_but(defaults.own_keys, config, "",
                 {{"num_local_experts", 0},
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
                  {"swiglu_alpha", 0},
                  {"swiglu_limit", 0},
                  {"lm_head_bias", 0},
                  {"full_attn_mod", 1},
                  {"interpolate_factor", 1},
                  {"alibi", 0},
                  {"use_bidirectional_attention", 0}});
  return spec;
}

ModelSpec read_gguf_sizes(const Metadata& keys, std::string_view architecture,
                          std::string_view norm_eps,
                          const std::vector<std::string_view>& own_keys) {
  const std::string prefix = cat(architecture, ".");
  ModelSpec spec = read_sizes(
      keys,
      {prefix + "embedding_length", prefix + "feed_forward_length", prefix + "block_count",
       prefix + "attention.head_count", prefix + "attention.head_count_kv",
       prefix + "attention.key_length", prefix + "context_length", cat(prefix, norm_eps)},
      {});
  const auto head_dim = double(spec.layer(0).head_dim);
  refuse_all_but(own_keys, keys, prefix,
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
                  {"embedding_scale", 1}});
  return spec;
}

ModelSpec read_gguf_llama_like(const TensorSource& source, const Metadata& keys,
                               std::string_view architecture, GgufWindow windows,
                               const std::vector<std::string_view>& own_keys, NormKind norm) {
  const std::string prefix = cat(architecture, "."), key = prefix + "attention.sliding_window";
  const bool is_rms = norm == NormKind::Rms;
  ModelSpec spec = read_gguf_sizes(
      keys, architecture,
      is_rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon", own_keys);
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
