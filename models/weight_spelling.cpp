#include "models/weight_spelling.h"

#include <optional>
#include <set>

namespace minfer {
namespace {

constexpr Names kHfLlama = {.prefix = "model.",
                            .embedding = "embed_tokens",
                            .positions = "",
                            .layers = "layers.",
                            .attn_norm = "input_layernorm",
                            .wq = "self_attn.q_proj",
                            .wk = "self_attn.k_proj",
                            .wv = "self_attn.v_proj",
                            .wqkv = "",
                            .wo = "self_attn.o_proj",
                            .ffn_norm = "post_attention_layernorm",
                            .w_gate = "mlp.gate_proj",
                            .w_up = "mlp.up_proj",
                            .w_down = "mlp.down_proj",
                            .output_norm = "norm",
                            .output = "lm_head",
                            .transposed = false};

constexpr Names kHfGpt2 = {.prefix = "transformer.",
                           .embedding = "wte",
                           .positions = "wpe",
                           .layers = "h.",
                           .attn_norm = "ln_1",
                           .wq = "",
                           .wk = "",
                           .wv = "",
                           .wqkv = "attn.c_attn",
                           .wo = "attn.c_proj",
                           .ffn_norm = "ln_2",
                           .w_gate = "",
                           .w_up = "mlp.c_fc",
                           .w_down = "mlp.c_proj",
                           .output_norm = "ln_f",
                           .output = "lm_head",
                           .transposed = true};

constexpr Names kGgufLlama = {.prefix = "",
                              .embedding = "token_embd",
                              .positions = "",
                              .layers = "blk.",
                              .attn_norm = "attn_norm",
                              .wq = "attn_q",
                              .wk = "attn_k",
                              .wv = "attn_v",
                              .wqkv = "",
                              .wo = "attn_output",
                              .ffn_norm = "ffn_norm",
                              .w_gate = "ffn_gate",
                              .w_up = "ffn_up",
                              .w_down = "ffn_down",
                              .output_norm = "output_norm",
                              .output = "output",
                              .transposed = false};

constexpr Names kGgufGpt2 = {.prefix = "",
                             .embedding = "token_embd",
                             .positions = "position_embd",
                             .layers = "blk.",
                             .attn_norm = "attn_norm",
                             .wq = "",
                             .wk = "",
                             .wv = "",
                             .wqkv = "attn_qkv",
                             .wo = "attn_output",
                             .ffn_norm = "ffn_norm",
                             .w_gate = "",
                             .w_up = "ffn_up",
                             .w_down = "ffn_down",
                             .output_norm = "output_norm",
                             .output = "output",
                             .transposed = false};

// What stands in front of `name` in the one tensor of the source whose name ends with it, after a
// dot; nothing where there is none, or more than one.
std::optional<std::string> only_prefix(const TensorSource& source, const std::string& name) {
  std::set<std::string> prefixes;
  const auto look_at = [&](std::string_view stored) {
    if (!stored.ends_with(name)) return;
    stored.remove_suffix(name.size());
    if (stored.empty() || stored.ends_with('.')) prefixes.emplace(stored);
  };
  for (const TensorEntry& entry : source.tensors) look_at(entry.name);
  for (const auto& [stored, reason] : source.unusable) look_at(stored);
  return prefixes.size() == 1 ? std::optional(*prefixes.begin()) : std::nullopt;
}

}  // namespace

const Names& names_of(KeyStyle style, Architecture architecture) {
  const bool is_llama = architecture == Architecture::Llama;
  if (style == KeyStyle::HuggingFace) return is_llama ? kHfLlama : kHfGpt2;
  return is_llama ? kGgufLlama : kGgufGpt2;
}

std::vector<std::string_view> linear_modules(const Names& names, LinearGroup group) {
  switch (group) {
    case LinearGroup::Inputs:
      return {names.wq, names.wk, names.wv};
    case LinearGroup::Output:
      return {names.wo};
    case LinearGroup::Mlp:
      return {names.w_gate, names.w_up, names.w_down};
  }
  throw Error(ErrorKind::Internal, "linear_modules");
}

std::vector<std::string_view> linear_modules(const Names& names) {
  return {names.wq, names.wk, names.wv, names.wo, names.w_gate, names.w_up, names.w_down};
}

bool is_stored(const TensorSource& source, const std::string& name) {
  return source.find(name) != nullptr || source.unusable.contains(name);
}

Spelling Spelling::usual(const Names& names) {
  return {names, std::string(names.prefix), std::string(names.output)};
}

Spelling Spelling::of(const TensorSource& source, const ModelConfig& config) {
  Spelling spelling = usual(names_of(source.key_style, config.architecture));
  const Names& names = spelling.names;
  const std::string first = cat(names.layers, "0.", names.attn_norm, ".weight");
  if (source.find(spelling.prefix + first) == nullptr) {
    spelling.prefix = only_prefix(source, first).value_or(spelling.prefix);
  }
  const std::string output = spelling.output + ".weight";
  if (source.key_style == KeyStyle::HuggingFace && !is_stored(source, output)) {
    spelling.output = only_prefix(source, output).value_or("") + spelling.output;
  }
  return spelling;
}

std::string Spelling::embedding_name() const { return cat(prefix, names.embedding, ".weight"); }
std::string Spelling::output_name() const { return output + ".weight"; }
std::string Spelling::layer(int64_t i) const { return cat(prefix, names.layers, i, "."); }

StoredTables find_tables(const TensorSource& source, const ModelConfig& config) {
  const Spelling spelling = Spelling::of(source, config);
  return {.embedding = source.find(spelling.embedding_name()),
          .output = source.find(spelling.output_name()),
          .output_name = spelling.output_name(),
          .has_embedding = is_stored(source, spelling.embedding_name()),
          .has_output = is_stored(source, spelling.output_name())};
}

std::vector<const TensorEntry*> find_biases(const TensorSource& source, const ModelConfig& config,
                                            LinearGroup group) {
  const Spelling spelling = Spelling::of(source, config);
  std::vector<const TensorEntry*> biases;
  for (int64_t i = 0; i < config.n_layers; ++i) {
    for (const std::string_view module : linear_modules(spelling.names, group)) {
      const TensorEntry* bias = source.find(cat(spelling.layer(i), module, ".bias"));
      if (bias != nullptr) biases.push_back(bias);
    }
  }
  return biases;
}

}  // namespace minfer
