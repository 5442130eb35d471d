#include "models/weight_spelling.h"

#include <algorithm>
#include <optional>
#include <set>

namespace minfer {
namespace {

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

using Modules = std::span<const std::pair<WeightRole, std::string_view>>;
constexpr std::pair<WeightRole, std::string_view> kQkvApart[] = {
    {WeightRole::Wq, "attn_q"}, {WeightRole::Wk, "attn_k"}, {WeightRole::Wv, "attn_v"}};
constexpr std::pair<WeightRole, std::string_view> kQkvTogether[] = {
    {WeightRole::Wq, "attn_qkv"}, {WeightRole::Wk, "attn_qkv"}, {WeightRole::Wv, "attn_qkv"}};

// The module of the role, empty where it is not among them.
std::string_view module_of(Modules modules, WeightRole role) {
  const auto found = std::ranges::find(modules, role, &Modules::value_type::first);
  return found == modules.end() ? std::string_view() : found->second;
}

// The other form of q, k and v, if the source has that and not the one of its architecture.
Modules other_qkv(const TensorSource& source, const WeightNames& names,
                  const std::string& first_layer) {
  const auto has = [&](std::string_view module) {
    return is_stored(source, cat(first_layer, module, ".weight"));
  };
  for (const Modules other : {Modules(kQkvApart), Modules(kQkvTogether)}) {
    const std::string_view own = names.module(WeightRole::Wq), theirs = other.front().second;
    if (own != theirs && (own == "attn_q" || own == "attn_qkv") && !has(own) && has(theirs)) {
      return other;
    }
  }
  return {};
}

// The biases of the matrices in a tensor: "ffn_up_exps.bias" beside "ffn_up_exps.weight",
// "down_proj_bias" beside "down_proj".
std::string bias_beside(std::string_view matrices) {
  constexpr std::string_view kWeight = ".weight";
  if (!matrices.ends_with(kWeight)) return cat(matrices, "_bias");
  return cat(matrices.substr(0, matrices.size() - kWeight.size()), ".bias");
}

}  // namespace

bool is_stored(const TensorSource& source, const std::string& name) {
  return source.find(name) != nullptr || source.unusable.contains(name);
}

Spelling Spelling::usual(KeyStyle style, const ModelSpec& spec) {
  const Family& family = family_of(spec);
  const WeightNames& names = style == KeyStyle::HuggingFace ? family.hf_names : family.gguf_names;
  Spelling spelling{names, std::string(names.prefix),
                    std::string(names.module(WeightRole::Output))};
  const bool is_stacked = style == KeyStyle::Gguf || !names.has_module(WeightRole::ExpertGate);
  if (is_stacked && !names.stacked.empty()) spelling.stacked = &names.stacked.front();
  return spelling;
}

Spelling Spelling::of(const TensorSource& source, const ModelSpec& spec) {
  Spelling spelling = usual(source.key_style, spec);
  const WeightNames& names = spelling.names;
  const WeightRole norm =
      spec.layer(0).has_norm_before() ? WeightRole::AttnNorm : WeightRole::AttnPostNorm;
  const std::string first = cat(names.layers, "0.", names.module(norm), ".weight");
  if (source.find(spelling.prefix + first) == nullptr) {
    spelling.prefix = only_prefix(source, first).value_or(spelling.prefix);
  }
  if (source.key_style == KeyStyle::Gguf) {
    spelling.qkv = other_qkv(source, names, cat(spelling.prefix, names.layers, "0."));
  }
  // The block of experts in the form that the source has.
  const auto is_there = [&](const WeightInfo& weight) {
    return is_stored(source, spelling.name(weight));
  };
  WeightInfo expert;
  expert.role = WeightRole::ExpertGate;
  expert.expert = 0;
  for (int64_t i = 0; i < spec.n_layers() && expert.layer < 0; ++i) {
    if (spec.layer(i).has_experts()) expert.layer = i;
  }
  if (expert.layer >= 0 && !is_there(expert)) {
    const auto* const usual_form = spelling.stacked;
    std::vector<decltype(spelling.stacked)> forms;
    if (names.has_module(expert.role)) forms.push_back(nullptr);
    for (const auto& form : names.stacked) forms.push_back(&form);
    const auto found = std::ranges::find_if(forms, [&](const auto* form) {
      spelling.stacked = form;
      return is_there(expert);
    });
    if (found == forms.end()) spelling.stacked = usual_form;
  }
  const std::string output = spelling.output + ".weight";
  if (source.key_style == KeyStyle::HuggingFace && !is_stored(source, output)) {
    spelling.output = only_prefix(source, output).value_or("") + spelling.output;
  }
  return spelling;
}

std::string Spelling::name(const WeightInfo& weight) const {
  if (weight.role == WeightRole::Output) return cat(output, weight.is_bias ? ".bias" : ".weight");
  const std::string block = weight.is_in_block() ? cat(names.layers, weight.layer, ".") : "";
  if (stacked != nullptr) {
    const std::string_view whole = module_of(*stacked, weight.role);
    if (!whole.empty()) {
      return cat(prefix, block, weight.is_bias ? bias_beside(whole) : std::string(whole));
    }
  }
  std::string module(module_of(qkv, weight.role));
  if (module.empty()) module = names.module(weight.role);
  if (const size_t star = module.find('*'); star != std::string::npos) {
    module.replace(star, 1, std::to_string(weight.expert));
  }
  const bool is_whole_name =
      weight.role == WeightRole::RouterCorrection || weight.role == WeightRole::Sinks;
  if (is_whole_name) return cat(prefix, block, module);
  return cat(prefix, block, module, weight.is_bias ? ".bias" : ".weight");
}

std::string Spelling::embedding_name() const {
  return cat(prefix, names.module(WeightRole::Embedding), ".weight");
}
std::string Spelling::output_name() const { return output + ".weight"; }

StoredTables find_tables(const TensorSource& source, const ModelSpec& spec) {
  const Spelling spelling = Spelling::of(source, spec);
  return {.embedding = source.find(spelling.embedding_name()),
          .output = source.find(spelling.output_name()),
          .output_name = spelling.output_name(),
          .has_embedding = is_stored(source, spelling.embedding_name()),
          .has_output = is_stored(source, spelling.output_name())};
}

std::vector<const TensorEntry*> find_biases(const TensorSource& source, const ModelSpec& spec,
                                            bool LayerSpec::*flag) {
  ModelSpec with_biases = spec;
  for (LayerSpec& layer : with_biases.layers) {
    layer.qkv_bias = layer.attn_out_bias = layer.ffn_bias = false;
    layer.*flag = true;
  }
  const Spelling spelling = Spelling::of(source, spec);
  std::vector<const TensorEntry*> biases;
  for_each_weight(with_biases, [&](const WeightInfo& weight) {
    if (!weight.is_bias || weight.is_norm()) return;
    const TensorEntry* const bias = source.find(spelling.name(weight));
    if (bias != nullptr) biases.push_back(bias);
  });
  return biases;
}

}  // namespace minfer
