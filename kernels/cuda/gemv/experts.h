#pragma once

#include <vector>

#include "kernels/base/math.h"
#include "kernels/cuda/launchers.h"
#include "kernels/layer.h"

namespace minfer::cuda {

constexpr int64_t kMaxCardExperts = 512;  // of a layer: choose.cuh

// Where a matrix of an expert lies.
struct ExpertPlace {
  const void* weights;
  const void* scales;
  const float* mins;  // of products no floats, but where those of the first record are
  const void* bias;
};

// The places of gate, up and down of all experts, [3, n_experts]: what MoeWeights::index holds on
// the card. Throws Input if they are more than kMaxCardExperts, or not alike in shape and format.
std::vector<ExpertPlace> expert_places(const MoeWeights& weights);

// One matrix of every expert.
struct ExpertMatrices {
  const Matrix* first;        // that of expert 0: their shape and format
  const ExpertPlace* places;  // [n_experts], in device memory
};
enum class ExpertPart { Gate, Up, Down };
ExpertMatrices matrices_of(const MoeWeights& weights, ExpertPart part);

// What a router computes from its logits: the fields of LayerSpec.
struct Router {
  const float *bias, *correction;  // [n_experts], or null
  RouterScore score;
  bool renormalizes;
  float scale;
  int n_experts, n_active;
};

inline Router router_of(const LayerSpec& spec, Tensor bias, Tensor correction) {
  return {static_cast<const float*>(bias.data),
          static_cast<const float*>(correction.data),
          spec.router_score,
          spec.renormalizes_experts,
          spec.router_scale,
          narrow<int>(spec.n_experts),
          narrow<int>(spec.n_active_experts)};
}

// A mixture of experts for few rows, in two launches of GEMVs that read only the chosen experts of
// each row: x += sum_j weight_j * expert_j(norm(x)). Each launch chooses the experts by itself.
struct ExpertStep {
  Tensor x;              // [n_rows, dim] F32, the residual stream
  const GemvNorm& norm;  // its weight says which half is computed in
  Tensor logits;         // [n_rows, n_experts] F32, of the router, without its bias
  Tensor hidden;         // [n_rows, n_active, ffn_dim] half: workspace
  const MoeWeights& moe;
  const LayerSpec& spec;
};
// Whether expert_gemv computes such a layer: experts of SwiGLU, clamped or not, behind an RMSNorm,
// of formats that the GEMV kernel takes, at most kMaxGemvTokens of them for a row, and rows that
// fit in shared memory.
bool expert_gemv_takes(const MoeWeights& moe, const LayerSpec& spec, DType half);
void expert_gemv(cudaStream_t stream, const ExpertStep& step);

}  // namespace minfer::cuda
