#include <algorithm>
#include <cmath>
#include <iterator>

#include "models/config_reader.h"
#include "models/weight_names.h"

namespace minfer {
namespace {

// Rows of the embedding, where no key says them.
int64_t vocab_size_of(const TensorSource& source, const std::string& prefix) {
  const std::string key = prefix + "vocab_size";
  if (source.metadata.has(key)) return read_vocab_size(source.metadata, key);
  const std::string name = "token_embd.weight";
  const auto unusable = source.unusable.find(name);
  MINFER_REQUIRE(Input, unusable == source.unusable.end(), "tensor ", name, " ", unusable->second);
  const TensorEntry* embedding = source.find(name);
  MINFER_REQUIRE(Input, embedding != nullptr && embedding->shape.rank == 2, "tensor ", name,
                 " [vocab_size, dim] is missing");
  return embedding->shape[0];
}

void read_rope(ModelConfig& config, const Metadata& metadata, const std::string& prefix) {
  config.interleaved_rope = true;
  config.rope_theta = read_rope_theta(metadata, prefix + "rope.freq_base");
  config.rotary_dim =
      metadata.integer_or(prefix + "rope.dimension_count", config.head_dim, 2, config.head_dim);
  MINFER_REQUIRE(Input, config.rotary_dim % 2 == 0, "key ", prefix, "rope.dimension_count is ",
                 config.rotary_dim, ", expected an even number");

  const std::string type_key = prefix + "rope.scaling.type";
  const std::string type = metadata.text_or(type_key, "linear");
  require_supported(type_key, type, {"none", "linear"});
  std::string factor_key = prefix + "rope.scaling.factor";
  if (!metadata.has(factor_key)) factor_key = prefix + "rope.scale_linear";  // its first name
  if (type == "none" || !metadata.has(factor_key)) return;
  config.rope_scaling = RopeScaling::Linear;
  config.rope_factor = read_rope_factor(metadata, factor_key);
}

std::vector<NeutralKey> neutral_keys(const ModelConfig& config) {
  return {{"attention.value_length", double(config.head_dim)},
          {"expert_count", 0},
          {"attention.causal", 1},
          {"attention.scale", 1 / std::sqrt(double(config.head_dim))},
          {"attention.clamp_kqv", 0},
          {"attention.max_alibi_bias", 0},
          {"attn_logit_softcapping", 0},
          {"final_logit_softcapping", 0},
          {"use_parallel_residual", 0},
          {"pooling_type", 0},
          {"logit_scale", 1},
          {"residual_scale", 1},
          {"embedding_scale", 1},
          {"rope.scaling.attn_factor", 1}};
}

void read_llama(ModelConfig& config, const TensorSource& source, const Metadata& metadata,
                const std::string& prefix) {
  read_rope(config, metadata, prefix);
  const auto has_biases = [&](LinearGroup group) {
    return !find_biases(source, config, group).empty();
  };
  config.attention_bias = has_biases(LinearGroup::Inputs);
  config.attention_out_bias = has_biases(LinearGroup::Output);
  config.mlp_bias = has_biases(LinearGroup::Mlp);
  for (const std::string name : {"rope_factors_long.weight", "rope_factors_short.weight"}) {
    MINFER_REQUIRE(Input, source.find(name) == nullptr, "tensor ", name,
                   ": longrope scaling is not supported (supported: none, linear, "
                   "rope_freqs.weight)");
  }
}

// Keys that are read above, and keys that say nothing about the mathematics.
constexpr std::string_view kOtherKeys[] = {"embedding_length",
                                           "feed_forward_length",
                                           "block_count",
                                           "attention.head_count",
                                           "attention.head_count_kv",
                                           "attention.key_length",
                                           "attention.layer_norm_epsilon",
                                           "attention.layer_norm_rms_epsilon",
                                           "attention.sliding_window",
                                           "context_length",
                                           "vocab_size",
                                           "rope.dimension_count",
                                           "rope.freq_base",
                                           "rope.scale_linear",
                                           "rope.scaling.factor",
                                           "rope.scaling.finetuned",
                                           "rope.scaling.original_context_length",
                                           "rope.scaling.type",
                                           "expert_used_count",
                                           "tensor_data_layout"};

bool is_known(std::string_view key, const ModelConfig& config) {
  const std::vector<NeutralKey> neutral = neutral_keys(config);
  return std::find(std::begin(kOtherKeys), std::end(kOtherKeys), key) != std::end(kOtherKeys) ||
         std::any_of(neutral.begin(), neutral.end(),
                     [&](const NeutralKey& known) { return known.key == key; });
}

// Sizes of each layer, as some converters write them: one number, where all layers have the same.
// The keys of the architecture alone: vocabularies are large.
Metadata with_uniform_arrays_as_numbers(const Metadata& metadata) {
  constexpr const char* kOfLayers[] = {"feed_forward_length", "attention.head_count",
                                       "attention.head_count_kv", "attention.sliding_window"};
  const std::string prefix = metadata.text("general.architecture") + ".";
  Metadata own;
  for (auto it = metadata.all().lower_bound(prefix);
       it != metadata.all().end() && it->first.starts_with(prefix); ++it) {
    own.set(it->first, it->second);
  }
  for (const char* name : kOfLayers) {
    const std::string key = prefix + name;
    if (!own.has(key) || !std::holds_alternative<std::vector<int64_t>>(own.all().at(key))) continue;
    const std::vector<int64_t> values = own.integers(key);
    MINFER_REQUIRE(Input, !values.empty(), "key ", key, " has no values");
    MINFER_REQUIRE(Input, std::ranges::count(values, values.front()) == std::ssize(values), "key ",
                   key, " has ", own.as_text(key),
                   ": layers of different sizes are not supported (supported: one number)");
    own.set(key, values.front());
  }
  return own;
}

}  // namespace

std::vector<std::string> unknown_gguf_keys(const Metadata& metadata, const ModelConfig& config) {
  const std::string prefix = config.architecture_name() + ".";
  std::vector<std::string> keys;
  for (auto it = metadata.all().lower_bound(prefix);
       it != metadata.all().end() && it->first.starts_with(prefix); ++it) {
    if (!is_known(it->first.substr(prefix.size()), config)) keys.push_back(it->first);
  }
  return keys;
}

ModelConfig read_gguf_config(const TensorSource& source) {
  const std::string& name = source.metadata.text("general.architecture");
  require_supported("general.architecture", name, {"llama", "gpt2"});
  const Metadata metadata = with_uniform_arrays_as_numbers(source.metadata);
  MINFER_REQUIRE(Input, !source.tensors.empty() || !source.unusable.empty(),
                 "has no tensors: a vocabulary, not a model");

  ModelConfig config;
  const bool is_llama = name == "llama";
  config.architecture = is_llama ? Architecture::Llama : Architecture::Gpt2;
  const std::string prefix = name + ".";
  const SizeKeys keys = {
      prefix + "embedding_length",
      prefix + "feed_forward_length",
      prefix + "block_count",
      prefix + "attention.head_count",
      prefix + "attention.head_count_kv",
      prefix + "attention.key_length",
      prefix + "context_length",
      prefix + (is_llama ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon")};
  read_sizes(config, metadata, keys, {});
  config.vocab_size = vocab_size_of(source, prefix);
  config.tied_output = source.find("output.weight") == nullptr;
  if (is_llama) {
    read_llama(config, source, metadata, prefix);
  } else {
    config.attention_bias = config.attention_out_bias = config.mlp_bias = true;
  }

  refuse_sliding_window(metadata, prefix + "attention.sliding_window", config.trained_seq_len);
  refuse_unless_neutral(metadata, prefix, neutral_keys(config));
  return config;
}

}  // namespace minfer
