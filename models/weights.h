#pragma once

#include <vector>

#include "kernels/layer.h"

namespace minfer {

// The weights of a model, in a backend's memory. Which there are, and their shapes: for_each_weight
// (models/weight_list.h).
struct Weights {
  Matrix embedding;  // [vocab_size, dim]
  Matrix positions;  // [trained_seq_len, dim]; null where positions are not learned
  std::vector<LayerWeights> layers;
  Norm output_norm;
  Matrix output;             // [vocab_size, dim]; null where tied
  DeviceTensor output_bias;  // [vocab_size] or null: of the logits

  const Matrix& output_matrix() const { return output ? output : embedding; }
};

}  // namespace minfer
