#pragma once

#include "kernels/layer.h"

// Mixtures of experts. A router chooses n_active of n_experts feed-forward networks for each row of
// an input, and the row's output is the weighted sum of theirs:
//
//   logits  = input routerᵀ [+ bias]                               [n_rows, n_experts] F32
//   scores  = softmax(logits) over the experts, or sigmoid(logits)
//   chosen  : the n_active experts with the largest scores, or scores + correction; ties go to the
//             lower index, and a score that is no number comes last
//   weights = scores of the chosen (without the correction) [/ their sum], times router_scale
//   out     = sum_j weights[j] * expert(chosen[j]) + [sigmoid(input shared_gateᵀ)] * shared expert
//
// A chosen expert and its row are a pair: pair row * n_active + j is the j-th choice of the row. A
// stable counting sort puts the pairs into places by expert, so that the rows of one expert follow
// one another, in their order. Every sum has a fixed order, so the same inputs give the same bits.
namespace minfer {

// What route() decides for the rows of a pass, in one allocation of the backend's memory.
struct Routing {
  int64_t n_rows = 0, n_experts = 0, n_active = 0;
  float* weights = nullptr;   // [n_rows, n_active], the largest score first
  int32_t* chosen = nullptr;  // [n_rows, n_active]: experts, in the same order
  int32_t* begins = nullptr;  // [n_experts + 1]: expert e has places begins[e] to begins[e + 1]
  int32_t* pairs = nullptr;   // [n_pairs]: the pair at each place
  int32_t* places = nullptr;  // [n_pairs]: the place of each pair

  // Lays one out in `memory`, of bytes() bytes.
  Routing(void* memory, int64_t n_rows, int64_t n_experts, int64_t n_active);
  static int64_t bytes(int64_t n_rows, int64_t n_experts, int64_t n_active);
  int64_t n_pairs() const { return n_rows * n_active; }
};

struct RouteArgs {
  Routing out;
  Tensor logits;            // [n_rows, n_experts] F32, without the bias
  Tensor bias, correction;  // [n_experts] F32, or null
  const LayerSpec& spec;
};

// out[place] = expert(x[row]) for the pair at each place.
struct ExpertsArgs {
  Tensor out;     // [n_pairs, dim]
  Tensor x;       // [n_rows, dim]
  Tensor hidden;  // [n_pairs, ffn_dim]: workspace
  const Routing& routing;
  const MoeWeights& weights;
  const LayerSpec& spec;
};

// sum[t] = sum_j weights[t, j] * outs[places[t, j]], for j = 0, 1, ..., then + shared[t], times
// sigmoid(shared_gate[t]) if that is given. Then out[t] = sum[t], or, if out is the residual
// stream, out[t] += sum[t]: only the result is rounded.
struct CombineArgs {
  Tensor out;          // [n_rows, dim] of the activation type; with `accumulate`, F32
  Tensor outs;         // [n_pairs, dim], by place
  Tensor shared;       // [n_rows, dim], or null
  Tensor shared_gate;  // [n_rows, 1] F32, or null
  const Routing& routing;
  bool accumulate = false;
  const NormArgs* next = nullptr;  // applied afterwards, if given, with `accumulate`: of out
};

struct MoeArgs {
  Tensor x;      // [n_rows, dim] F32, the residual stream
  Tensor input;  // [n_rows, dim]
  const MoeWeights& weights;
  const LayerSpec& spec;
  NormWeights post_norm = {};      // of the experts' sum
  float scale = 1;                 // of what is added to x
  const NormArgs* next = nullptr;  // applied afterwards, if given: of x
};

}  // namespace minfer
