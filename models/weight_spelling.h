#pragma once

#include <string>
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

  static Spelling usual(KeyStyle style, const ModelSpec& spec);
  static Spelling of(const TensorSource& source, const ModelSpec& spec);

  std::string name(const WeightInfo& weight) const;
  std::string embedding_name() const;
  std::string output_name() const;
};

}  // namespace minfer
