#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/spec.h"
#include "models/weight_list.h"
#include "models/weights.h"

namespace minfer {

// Where some rows of a tensor go: a matrix or a vector of the model.
struct WeightPart {
  Matrix* matrix = nullptr;
  DeviceTensor* vector = nullptr;
  int64_t n_rows = 0;
  // > 0: the rows are this many heads whose first rotary_dim rows are interleaved rotary pairs, to
  // be put into halves.
  int64_t rope_heads = 0, rotary_dim = 0;
  float offset = 0;        // added to each element of a vector
  bool is_table = false;   // as WeightInfo has it
  WeightInfo weight = {};  // of the whole model
};

// A tensor of the file that the model needs, found and of the right shape.
struct WeightBinding {
  const TensorEntry* entry = nullptr;
  bool transposed = false;  // stored [in, out]: GPT-2's Conv1D in Hugging Face files
  int64_t qkv_heads = 0;    // > 0: rows of so many heads, see Family::hf_qkv_by_head
  // A tensor [n_experts, rows, in] as a matrix [n_experts * rows, in], [n_experts, rows] as a
  // vector, or [in] as [1, in]; `entry` then points to it.
  std::shared_ptr<const TensorEntry> flat = nullptr;
  std::vector<WeightPart> parts;  // in the order of the rows
};

// Sizes `weights` for the model and says which tensor fills which field, whatever the file calls
// it. Throws Input for a tensor that is missing or of another shape. `surplus` gets the names of
// tensors that the model does not use. The bindings point into `source` and `weights`.
std::vector<WeightBinding> bind_weights(const TensorSource& source, const ModelSpec& spec,
                                        Weights& weights, std::vector<std::string>& surplus);

// The matrices of the vocabulary as a source has them; null where it cannot deliver one.
struct StoredTables {
  const TensorEntry *embedding, *output;
  std::string output_name;         // "lm_head.weight"
  bool has_embedding, has_output;  // also where they cannot be delivered
};
StoredTables find_tables(const TensorSource& source, const ModelSpec& spec);

// The biases that the source has, of all layers, of the linear layers that the flag is about:
// qkv_bias, attn_out_bias or ffn_bias.
std::vector<const TensorEntry*> find_biases(const TensorSource& source, const ModelSpec& spec,
                                            bool LayerSpec::*flag);

// The rows of a weight that are interleaved rotary pairs in a tensor: as WeightPart has them.
struct RotaryPairs {
  int64_t n_heads = 0, rotary_dim = 0;
};
// Every tensor of a model as transformers names it, in the order of bind_weights.
struct NamedShape {
  std::string name;
  Shape shape;                      // of the experts' tensors: [n_experts, rows, in]
  WeightInfo weight;                // of several in one tensor, the first
  std::vector<WeightInfo> weights;  // in the order of the rows
  std::vector<RotaryPairs> pairs;   // of each of them
  int64_t qkv_heads = 0;            // as in WeightBinding
};
std::vector<NamedShape> hf_weights(const ModelSpec& spec);
// The same by the names of GGUF files.
std::vector<NamedShape> gguf_weights(const ModelSpec& spec);

// Where a row of such a tensor lies in the model: in which of its weights, and which row of it.
struct RowPlace {
  size_t weight;
  int64_t row;
};
RowPlace place_of_row(const NamedShape& named, int64_t row);

// GGUF's divisors of the rotation frequencies, [rotary_dim / 2] each: the tensors that the file
// has, and where they go. Throws Input for one of another shape, and for longrope without both of
// its.
struct RopeTensor {
  const TensorEntry* entry = nullptr;
  std::vector<double> RopeSpec::*divisors = nullptr;
};
std::vector<RopeTensor> find_rope_tensors(const TensorSource& source, const ModelSpec& spec);

}  // namespace minfer
