#pragma once

#include <functional>
#include <string>
#include <tuple>

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
  Sinks,
  Wo,
  QNorm,
  KNorm,
  AttnPostNorm,
  FfnNorm,
  WGate,
  WUp,
  WDown,
  FfnPostNorm,
  Router,
  RouterCorrection,
  ExpertGate,
  ExpertUp,
  ExpertDown,
  SharedGate,  // of the shared expert
  SharedUp,
  SharedDown,
  SharedExpertGate,  // how much of the shared expert's output a row gets
  OutputNorm,
  Output
};

// The activations that a matrix of a block multiplies, in the order of computation: wq, wk and wv
// take the first, wo the second, w_gate and w_up the third, w_down the last. In a mixture of
// experts the router and every w_gate and w_up take the third, and each w_down has a last one of
// its own.
enum class BlockInput { Attention, AttentionOutput, Ffn, FfnOutput };

// The axis along which tensor parallelism slices a weight: its outputs, its inputs, or none.
enum class SliceAxis { None, Out, In };

// One matrix or vector of a model.
struct WeightInfo {
  WeightRole role = WeightRole::Embedding;
  bool is_bias = false;  // the vector of that role's linear layer or norm, or of the logits
  int64_t layer = -1;    // -1: outside the blocks
  int64_t expert = -1;   // of ExpertGate, ExpertUp and ExpertDown
  Shape shape;           // a matrix [out, in], a vector [n]
  SliceAxis slice = SliceAxis::None;
  bool is_table = false;  // a matrix whose rows are only looked up: no linear layer uses it

  // Tells the weights of a model apart.
  using Key = std::tuple<WeightRole, bool, int64_t, int64_t>;
  Key key() const { return {role, is_bias, layer, expert}; }

  bool is_matrix() const { return shape.rank == 2; }
  bool is_in_block() const { return layer >= 0; }
  bool is_norm() const;
  bool is_of_expert() const { return expert >= 0; }
  // A vector that decides which experts are chosen or what is attended to: kept in F32.
  bool is_f32() const;
  // The bias of outputs that are summed over the ranks before it could be added: the first rank
  // alone has it.
  bool is_of_first_rank() const { return role == WeightRole::ExpertDown && is_bias; }
  // A matrix with a row for each expert, or for the one that all share: small, and what it decides
  // is not to be rounded.
  bool is_router() const {
    return role == WeightRole::Router || role == WeightRole::SharedExpertGate;
  }
  // The embedding or the output matrix: one row for each token of the vocabulary.
  bool is_of_tokens() const {
    return is_matrix() && (role == WeightRole::Embedding || role == WeightRole::Output);
  }
  BlockInput input() const;  // throws Internal unless it is in a block's linear layer
};

// Visits every weight of a model: the embedding, learned positions, the blocks one after the other,
// the output norm and, unless it is tied, the output matrix. A bias follows its matrix or norm; in
// a block, the matrices come in the order of BlockInput. All code that iterates over weights uses
// this list.
void for_each_weight(const ModelSpec& spec, const std::function<void(const WeightInfo&)>& visit);

// Weights with as many layers and experts as the spec, all null.
Weights empty_weights(const ModelSpec& spec);

// Backend::index_experts for every layer that has some.
void index_experts(Weights& weights, Backend& backend);

// Return the place of one weight in `weights`, which is laid out by empty_weights().
Matrix& matrix_of(Weights& weights, const WeightInfo& info);
const Matrix& matrix_of(const Weights& weights, const WeightInfo& info);
DeviceTensor& vector_of(Weights& weights, const WeightInfo& info);
const DeviceTensor& vector_of(const Weights& weights, const WeightInfo& info);

}  // namespace minfer
