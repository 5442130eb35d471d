#pragma once

#include <functional>
#include <string>

#include "models/spec.h"
#include "models/weights.h"

namespace minfer {

enum class WeightRole {
  Embedding,
  Positions,
  AttnNorm,
  Wq,
  Wk,
  Wv,
  Wo,
  QNorm,
  KNorm,
  AttnPostNorm,
  FfnNorm,
  WGate,
  WUp,
  WDown,
  FfnPostNorm,
  OutputNorm,
  Output
};

// The activations that a matrix of a block multiplies, in the order of computation: wq, wk and wv
// take the first, wo the second, w_gate and w_up the third, w_down the last.
enum class BlockInput { Attention, AttentionOutput, Ffn, FfnOutput };

// The axis along which tensor parallelism slices a weight: its outputs, its inputs, or none.
enum class SliceAxis { None, Out, In };

// One matrix or vector of a model.
struct WeightInfo {
  WeightRole role = WeightRole::Embedding;
  bool is_bias = false;  // the vector of that role's linear layer or norm, or of the logits
  int64_t layer = -1;    // -1: outside the blocks
  Shape shape;           // a matrix [out, in], a vector [n]
  SliceAxis slice = SliceAxis::None;
  bool is_table = false;  // a matrix whose rows are only looked up: no linear layer uses it

  bool is_matrix() const { return shape.rank == 2; }
  bool is_in_block() const { return layer >= 0; }
  bool is_norm() const;
  // The embedding or the output matrix: one row for each token of the vocabulary.
  bool is_of_tokens() const {
    return is_matrix() && (role == WeightRole::Embedding || role == WeightRole::Output);
  }
  BlockInput input() const;  // throws Internal unless it is in a block's linear layer
};

// Visits every weight of a model: the embedding, learned positions, the blocks one after the other,
// the output norm and, unless it is tied, the output matrix. A bias follows its matrix or norm.
// All code that iterates over weights uses this list.
void for_each_weight(const ModelSpec& spec, const std::function<void(const WeightInfo&)>& visit);

// Return the place of one weight in `weights`, which must have as many layers as the spec.
Matrix& matrix_of(Weights& weights, const WeightInfo& info);
const Matrix& matrix_of(const Weights& weights, const WeightInfo& info);
DeviceTensor& vector_of(Weights& weights, const WeightInfo& info);
const DeviceTensor& vector_of(const Weights& weights, const WeightInfo& info);

}  // namespace minfer
