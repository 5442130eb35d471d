#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/families/family.h"
#include "models/weight_names.h"

// Private to models/: how the kinds of files, and one file of a kind, name tensors.
namespace minfer {

// Whether the source has the tensor, be it one that it cannot deliver.
bool is_stored(const TensorSource& source, const std::string& name);

// How one source spells the names of its kind: what it puts in front of them differs where a model
// has been taken out of another, or put into one ("", "model.model.", "language_model.model.").
struct Spelling {
  const WeightNames& names;
  std::string prefix;  // in place of names.prefix
  std::string output;  // module of the output matrix
  // In place of the modules of Wq, Wk and Wv in names: where a GGUF file has one matrix for three,
  // or three for one.
  std::span<const std::pair<WeightRole, std::string_view>> qkv = {};
  // How the experts are stored: one of names.stacked; null: each by itself.
  const std::vector<std::pair<WeightRole, std::string_view>>* stacked = nullptr;

  static Spelling usual(KeyStyle style, const ModelSpec& spec);
  static Spelling of(const TensorSource& source, const ModelSpec& spec);

  std::string name(const WeightInfo& weight) const;
  // Whether the weight is one of several in a tensor [n_experts, rows, in].
  bool is_stacked(const WeightInfo& weight) const {
    return stacked != nullptr && weight.is_of_expert();
  }
  std::string embedding_name() const;
  std::string output_name() const;
};

}  // namespace minfer
