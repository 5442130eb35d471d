#include <algorithm>
#include <cmath>
#include <iterator>

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

void read_rope(ModelConfig& config, const Metadata& metadata) {
  const std::string root = rope_root(metadata), at = root + ".";
  std::string theta_key = at + "rope_theta";
  if (!metadata.has(theta_key)) theta_key = "rope_theta";
  if (!metadata.has(theta_key)) theta_key = "rope_parameters.rope_theta";
  config.rope_theta = read_rope_theta(metadata, theta_key);
  std::string type_key = at + "rope_type";
  if (!metadata.has(type_key)) type_key = at + "type";  // its first name
  const std::string type = metadata.text_or(type_key, "default");
  require_supported(type_key, type, {"default", "linear", "llama3"});
  for (const char* each : {"rope_scaling", "rope_parameters"}) {
    refuse_other_rope_keys(metadata, each);
  }
  if (type == "default") return;

  config.rope_factor = read_rope_factor(metadata, at + "factor");
  if (type == "linear") {
    config.rope_scaling = RopeScaling::Linear;
    return;
  }
  config.rope_scaling = RopeScaling::Llama3;
  config.rope_low_freq_factor = metadata.number(at + "low_freq_factor", 1e-6, 1e6);
  config.rope_high_freq_factor = metadata.number(at + "high_freq_factor", 1e-6, 1e6);
  MINFER_REQUIRE(Input, config.rope_low_freq_factor < config.rope_high_freq_factor,
                 "rope scaling: low_freq_factor ", config.rope_low_freq_factor,
                 " is not below high_freq_factor ", config.rope_high_freq_factor);
  // What transformers takes, in this order.
  const char* const outside = "original_max_position_embeddings";
  const std::string inside = at + outside;
  const std::string key = metadata.has(outside)  ? outside
                          : metadata.has(inside) ? inside
                                                 : "max_position_embeddings";
  config.rope_original_seq_len = metadata.integer(key, 1, int64_t{1} << 31);
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
                         {"rope_scaling.partial_rotary_factor", 1},
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

// Top-level keys that are read above, and those that say nothing about what is computed: of
// training, of generation's defaults, of other programs and of the file itself.
constexpr std::string_view kKnownKeys[] = {
    // read
    "architectures", "model_type", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings",
    "rms_norm_eps", "vocab_size", "tie_word_embeddings", "attention_bias", "mlp_bias", "hidden_act",
    "rope_theta", "rope_scaling", "rope_parameters", "original_max_position_embeddings",
    "sliding_window", "layer_types", "partial_rotary_factor", "num_local_experts", "num_experts",
    "n_routed_experts", "attention_multiplier", "embedding_multiplier", "residual_multiplier",
    "logits_scaling", "logit_scale", "attn_logit_softcapping", "final_logit_softcapping",
    "clip_qkv", "use_qk_norm", "alibi", "quantization_config", "compression_config", "dtype",
    "torch_dtype", "eos_token_id", "bos_token_id", "pad_token_id", "n_embd", "n_inner", "n_layer",
    "n_head", "n_positions", "n_ctx", "layer_norm_epsilon", "activation_function",
    "scale_attn_weights", "scale_attn_by_inverse_layer_idx", "add_cross_attention",
    // without effect here
    "_name_or_path", "_attn_implementation", "_attn_implementation_autoset",
    "_flash_attn_2_enabled", "transformers_version", "transformers_weights", "auto_map",
    "initializer_range", "use_cache", "pretraining_tp", "attention_dropout", "hidden_dropout",
    "hidden_dropout_prob", "attn_pdrop", "embd_pdrop", "resid_pdrop", "summary_activation",
    "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
    "reorder_and_upcast_attn", "task_specific_params", "gradient_checkpointing",
    "output_attentions", "output_hidden_states", "return_dict", "return_dict_in_generate",
    "output_scores", "chunk_size_feed_forward", "cross_attention_hidden_size",
    "decoder_start_token_id", "encoder_no_repeat_ngram_size", "finetuning_task", "id2label",
    "label2id", "problem_type", "num_labels", "is_decoder", "is_encoder_decoder", "prefix",
    "pruned_heads", "sep_token_id", "tf_legacy_loss", "tie_encoder_decoder", "tokenizer_class",
    "torchscript", "use_bfloat16", "bad_words_ids", "begin_suppress_tokens", "suppress_tokens",
    "diversity_penalty", "do_sample", "early_stopping", "exponential_decay_length_penalty",
    "forced_bos_token_id", "forced_eos_token_id", "length_penalty", "max_length", "max_new_tokens",
    "min_length", "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences",
    "remove_invalid_values", "repetition_penalty", "temperature", "top_k", "top_p", "typical_p",
    "unk_token_id", "max_sequence_length", "model_max_length", "tokenizer_model_max_length",
    "tokenizer_padding_side", "unsloth_version", "unsloth_fixed", "max_window_layers",
    "use_sliding_window", "head_size", "neftune_noise_alpha", "language", "license"};

}  // namespace

std::vector<std::string> unknown_hf_keys(const Metadata& metadata) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : metadata.all()) {
    const std::string name = key.substr(0, key.find('.'));
    const bool is_new = keys.empty() || keys.back() != name;
    if (is_new && std::ranges::find(kKnownKeys, name) == std::end(kKnownKeys)) keys.push_back(name);
  }
  return keys;
}

ModelConfig read_hf_config(const Metadata& metadata) {
  MINFER_REQUIRE(Input, !metadata.all().empty(),
                 "has no configuration: a model is the directory with config.json");
  const std::string name = architecture_of(metadata);
  ModelConfig config = name == kGpt2 ? read_gpt2(metadata) : read_llama(metadata, name == kMistral);
  config.vocab_size = read_vocab_size(metadata, "vocab_size");
  return config;
}

}  // namespace minfer
