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
  FfnNorm,
  WGate,
  WUp,
  WDown,
  OutputNorm,
  Output
};

// What the matrices of a block multiply, in the order of its computation: the input of wq, wk and
// wv; of wo; of w_gate and w_up; of w_down.
enum class BlockInput { Attention, AttentionOutput, Ffn, FfnOutput };

// Along which axis ranks that share a model divide a weight: its outputs, its inputs, or not.
enum class SliceAxis { None, Out, In };

// One matrix or vector of a model.
struct WeightInfo {
  WeightRole role = WeightRole::Embedding;
  bool is_bias = false;  // the vector of that role's linear layer or norm
  int64_t layer = -1;    // -1: outside the blocks
  Shape shape;           // a matrix [out, in], a vector [n]
  SliceAxis slice = SliceAxis::None;

  bool is_matrix() const { return shape.rank == 2; }
  bool is_in_block() const { return layer >= 0; }
  bool is_norm() const;
  // A matrix whose rows are looked up, and that nothing is multiplied by.
  bool is_table = false;
  // Of a matrix of a block.
  BlockInput input() const;
};

// Visits every weight of a model: the embedding, learned positions, the blocks one after the other,
// the output norm and, where it is not tied, the output matrix. A bias follows what it belongs to.
// Everything that goes over weights does it by this list: nothing else knows what a block consists
// of.
void for_each_weight(const ModelSpec& spec, const std::function<void(const WeightInfo&)>& visit);

// Where it lies. `weights` has as many layers as the spec.
Matrix& matrix_of(Weights& weights, const WeightInfo& info);
const Matrix& matrix_of(const Weights& weights, const WeightInfo& info);
DeviceTensor& vector_of(Weights& weights, const WeightInfo& info);
const DeviceTensor& vector_of(const Weights& weights, const WeightInfo& info);

}  // namespace minfer
