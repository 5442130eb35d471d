#include <algorithm>
#include <iterator>
#include <utility>

#include "models/config_reader.h"
#include "models/families/family.h"

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

// Keys that the readers of families share, and keys that say nothing about the mathematics.
constexpr std::string_view kOtherKeys[] = {"embedding_length",
                                           "feed_forward_length",
                                           "block_count",
                                           "attention.head_count",
                                           "attention.head_count_kv",
                                           "attention.key_length",
                                           "attention.value_length",
                                           "expert_count",
                                           "attention.causal",
                                           "attention.scale",
                                           "attention.clamp_kqv",
                                           "attention.max_alibi_bias",
                                           "attn_logit_softcapping",
                                           "final_logit_softcapping",
                                           "use_parallel_residual",
                                           "pooling_type",
                                           "logit_scale",
                                           "residual_scale",
                                           "embedding_scale",
                                           "rope.scaling.attn_factor",
                                           "attention.layer_norm_epsilon",
                                           "attention.layer_norm_rms_epsilon",
                                           "attention.sliding_window",
                                           "attention.sliding_window_pattern",
                                           "context_length",
                                           "vocab_size",
                                           "rope.dimension_count",
                                           "rope.freq_base",
                                           "rope.freq_base_swa",
                                           "rope.scale_linear",
                                           "rope.scaling.factor",
                                           "rope.scaling.finetuned",
                                           "rope.scaling.original_context_length",
                                           "rope.scaling.type",
                                           "rope.scaling.yarn_attn_factor",
                                           "rope.scaling.yarn_beta_fast",
                                           "rope.scaling.yarn_beta_slow",
                                           "rope.scaling.yarn_ext_factor",
                                           "rope.scaling.yarn_log_multiplier",
                                           "expert_used_count",
                                           "expert_feed_forward_length",
                                           "expert_shared_count",
                                           "expert_shared_feed_forward_length",
                                           "expert_weights_scale",
                                           "expert_weights_norm",
                                           "expert_gating_func",
                                           "expert_group_count",
                                           "expert_group_used_count",
                                           "leading_dense_block_count",
                                           "nextn_predict_layers",
                                           "tensor_data_layout"};

// Names that Ollama's converter gives to keys, and the usual ones.
constexpr std::pair<std::string_view, std::string_view> kAliases[] = {
    {"rope.global.freq_base", "rope.freq_base"},
    {"rope.local.freq_base", "rope.freq_base_swa"},
    {"rope.scaling.beta_fast", "rope.scaling.yarn_beta_fast"},
    {"rope.scaling.beta_slow", "rope.scaling.yarn_beta_slow"},
    {"rope.scaling.extrapolation_factor", "rope.scaling.yarn_ext_factor"}};

void rename_aliases(Metadata& keys, const std::string& prefix) {
  for (const auto& [alias, usual] : kAliases) {
    const std::string from = cat(prefix, alias), to = cat(prefix, usual);
    if (!keys.has(from)) continue;
    MINFER_REQUIRE(Input, !keys.has(to) || keys.as_text(to) == keys.as_text(from), "key ", from,
                   " is ", keys.as_text(from), ", but ", to, " is ", keys.as_text(to));
    keys.set(to, keys.all().at(from));
  }
}

// The keys of the architecture, as readers of families expect them: by their usual names, and sizes
// of each layer, which some converters write, as one number, where all layers have the same.
Metadata usual_keys(const Metadata& metadata) {
  constexpr const char* kOfLayers[] = {"feed_forward_length", "attention.head_count",
                                       "attention.head_count_kv", "attention.sliding_window"};
  const std::string prefix = metadata.text("general.architecture") + ".";
  Metadata own;
  for (auto it = metadata.all().lower_bound(prefix);
       it != metadata.all().end() && it->first.starts_with(prefix); ++it) {
    own.set(it->first, it->second);
  }
  rename_aliases(own, prefix);
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

// Whatever an unknown key says of positions or of attention, the text would be another one.
void refuse_unknown_mathematics(const Metadata& metadata, const ModelSpec& spec) {
  const size_t begin = family_of(spec).gguf_architecture.size() + 1;
  for (const std::string& key : unknown_gguf_keys(metadata, spec)) {
    const std::string_view name = std::string_view(key).substr(begin);
    MINFER_REQUIRE(Input, !name.starts_with("rope.") && !name.starts_with("attention."), "key ",
                   shortened(key), " is ", metadata.as_text(key), ": not supported");
  }
}

}  // namespace

std::vector<std::string> unknown_gguf_keys(const Metadata& metadata, const ModelSpec& spec) {
  const std::string prefix = cat(family_of(spec).gguf_architecture, ".");
  std::vector<std::string> keys;
  for (auto it = metadata.all().lower_bound(prefix);
       it != metadata.all().end() && it->first.starts_with(prefix); ++it) {
    const std::string name = it->first.substr(prefix.size());
    const bool is_alias =
        std::ranges::count(kAliases, name, &std::pair<std::string_view, std::string_view>::first);
    if (!is_alias && std::ranges::count(kOtherKeys, name) == 0) keys.push_back(it->first);
  }
  return keys;
}

ModelSpec read_gguf_spec(const TensorSource& source) {
  const Family& family = family_of_gguf(source.metadata);
  const Metadata keys = usual_keys(source.metadata);
  MINFER_REQUIRE(Input, !source.tensors.empty() || !source.unusable.empty(),
                 "has no tensors: a vocabulary, not a model");
  ModelSpec spec = family.read_gguf(source, keys);
  spec.family = family.name;
  spec.vocab_size = vocab_size_of(source, cat(family.gguf_architecture, "."));
  spec.tied_output = source.find("output.weight") == nullptr;
  refuse_unknown_mathematics(source.metadata, spec);
  return spec;
}

}  // namespace minfer
