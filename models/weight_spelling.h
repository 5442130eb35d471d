#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/model_config.h"
#include "models/weight_names.h"

// Private to models/: how the kinds of files, and one file of a kind, name tensors.
namespace minfer {

// Modules of a block and around it, as one kind of file spells them; each has a ".weight" and may
// have a ".bias". Empty: the architecture has no such module.
struct Names {
  std::string_view prefix;  // of all but `output`; some files leave it out
  std::string_view embedding, positions, layers;
  std::string_view attn_norm, wq, wk, wv, wqkv, wo;
  std::string_view ffn_norm, w_gate, w_up, w_down;
  std::string_view output_norm, output;
  bool transposed;  // matrices of the blocks are stored [in, out]
};

const Names& names_of(KeyStyle style, Architecture architecture);

// The linear layers of a Llama block: those of one group, and all of them.
std::vector<std::string_view> linear_modules(const Names& names, LinearGroup group);
std::vector<std::string_view> linear_modules(const Names& names);

// Whether the source has the tensor, be it one that it cannot deliver.
bool is_stored(const TensorSource& source, const std::string& name);

// How one source spells the names of its kind: what it puts in front of them differs where a model
// has been taken out of another, or put into one ("", "model.model.", "language_model.model.").
struct Spelling {
  const Names& names;
  std::string prefix;  // in place of names.prefix
  std::string output;

  static Spelling usual(const Names& names);
  static Spelling of(const TensorSource& source, const ModelConfig& config);

  std::string embedding_name() const;
  std::string output_name() const;
  std::string layer(int64_t i) const;
};

}  // namespace minfer
