#include <cmath>

#include "models/config_reader.h"

namespace minfer {
namespace {

constexpr std::string_view kLlama = "LlamaForCausalLM", kMistral = "MistralForCausalLM",
                           kGpt2 = "GPT2LMHeadModel";

// The class name; older files have the model type alone.
std::string architecture_of(const Metadata& metadata) {
  std::string key = "architectures", name;
  if (metadata.has(key)) {
    const std::vector<std::string>& names = metadata.texts(key);
    MINFER_REQUIRE(Input, names.size() == 1, "key architectures has ", names.size(),
                   " entries, expected 1");
    name = names.front();
  } else {
    key = "model_type";
    const std::string& type = metadata.text(key);
    name = type == "llama" ? kLlama : type == "mistral" ? kMistral : type == "gpt2" ? kGpt2 : type;
  }
  require_supported(key, name, {kLlama, kMistral, kGpt2});
  return name;
}

// "rope_scaling.K" of older files, "rope_parameters.K" of newer ones.
std::string rope_key(const Metadata& metadata, const std::string& name) {
  const std::string newer = "rope_parameters." + name;
  return metadata.has(newer) ? newer : "rope_scaling." + name;
}

void read_rope(ModelConfig& config, const Metadata& metadata) {
  const std::string nested_theta = "rope_parameters.rope_theta";
  config.rope_theta =
      read_rope_theta(metadata, metadata.has(nested_theta) ? nested_theta : "rope_theta");
  std::string type_key = rope_key(metadata, "rope_type");
  if (!metadata.has(type_key)) type_key = rope_key(metadata, "type");  // its first name
  const std::string type = metadata.text_or(type_key, "default");
  require_supported(type_key, type, {"default", "linear", "llama3"});
  if (type == "default") return;

  config.rope_factor = read_rope_factor(metadata, rope_key(metadata, "factor"));
  if (type == "linear") {
    config.rope_scaling = RopeScaling::Linear;
    return;
  }
  config.rope_scaling = RopeScaling::Llama3;
  config.rope_low_freq_factor = metadata.number(rope_key(metadata, "low_freq_factor"), 1e-6, 1e6);
  config.rope_high_freq_factor = metadata.number(rope_key(metadata, "high_freq_factor"), 1e-6, 1e6);
  MINFER_REQUIRE(Input, config.rope_low_freq_factor < config.rope_high_freq_factor,
                 "rope scaling: low_freq_factor ", config.rope_low_freq_factor,
                 " is not below high_freq_factor ", config.rope_high_freq_factor);
  config.rope_original_seq_len =
      metadata.integer(rope_key(metadata, "original_max_position_embeddings"), 1, int64_t{1} << 31);
}

// Every layer of a list that newer files carry must be what all layers are here.
void refuse_layer_types(const Metadata& metadata) {
  if (!metadata.has("layer_types")) return;
  for (const std::string& type : metadata.texts("layer_types")) {
    require_supported("layer_types", type, {"full_attention"});
  }
}

ModelConfig read_llama(const Metadata& metadata, bool is_mistral) {
  ModelConfig config;
  const SizeKeys keys = {
      "hidden_size",         "intermediate_size", "num_hidden_layers",       "num_attention_heads",
      "num_key_value_heads", "head_dim",          "max_position_embeddings", "rms_norm_eps"};
  // What transformers takes for an absent key.
  read_sizes(config, metadata, keys,
             {.n_kv_heads = is_mistral ? 8 : 0,
              .trained_seq_len = is_mistral ? 131072 : 2048,
              .norm_eps = 1e-6});
  config.tied_output = metadata.boolean_or("tie_word_embeddings", false);
  config.attention_bias = config.attention_out_bias = metadata.boolean_or("attention_bias", false);
  config.mlp_bias = metadata.boolean_or("mlp_bias", false);
  require_supported("hidden_act", metadata.text_or("hidden_act", "silu"), {"silu", "swish"});
  read_rope(config, metadata);
  refuse_sliding_window(metadata, "sliding_window", config.trained_seq_len);
  refuse_layer_types(metadata);
  refuse_unless_neutral(metadata, "",
                        {{"partial_rotary_factor", 1},
                         {"rope_parameters.partial_rotary_factor", 1},
                         {"num_local_experts", 0},
                         {"num_experts", 0},
                         {"n_routed_experts", 0},
                         {"attention_multiplier", 1 / std::sqrt(double(config.head_dim))},
                         {"embedding_multiplier", 1},
                         {"residual_multiplier", 1},
                         {"logits_scaling", 1},
                         {"logit_scale", 1},
                         {"attn_logit_softcapping", 0},
                         {"final_logit_softcapping", 0},
                         {"clip_qkv", 0},
                         {"use_qk_norm", 0},
                         {"alibi", 0}});
  return config;
}

ModelConfig read_gpt2(const Metadata& metadata) {
  ModelConfig config;
  config.architecture = Architecture::Gpt2;
  const SizeKeys keys = {"n_embd", "n_inner", "n_layer",     "n_head",
                         "",       "",        "n_positions", "layer_norm_epsilon"};
  const int64_t dim = metadata.integer("n_embd", 1, 1 << 20);
  read_sizes(config, metadata, keys,
             {.ffn_dim = 4 * dim, .trained_seq_len = 1024, .norm_eps = 1e-5});
  config.tied_output = metadata.boolean_or("tie_word_embeddings", true);
  config.attention_bias = config.attention_out_bias = config.mlp_bias = true;

  const std::string key = "activation_function", gelu = metadata.text_or(key, "gelu_new");
  require_supported(key, gelu, {"gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu"});
  config.gelu = gelu == "gelu" ? GeluKind::Erf : GeluKind::Tanh;
  refuse_unless_neutral(metadata, "",
                        {{"scale_attn_weights", 1},
                         {"scale_attn_by_inverse_layer_idx", 0},
                         {"add_cross_attention", 0}});
  return config;
}

}  // namespace

ModelConfig read_hf_config(const Metadata& metadata) {
  MINFER_REQUIRE(Input, !metadata.all().empty(),
                 "has no configuration: a model is the directory with config.json");
  const std::string name = architecture_of(metadata);
  ModelConfig config = name == kGpt2 ? read_gpt2(metadata) : read_llama(metadata, name == kMistral);
  config.vocab_size = read_vocab_size(metadata, "vocab_size");
  return config;
}

}  // namespace minfer
