#pragma once

#include "kernels/cuda/gemv/experts.h"
#include "kernels/cuda/launchers.h"
#include "kernels/moe.h"

// The launchers of mixtures of experts: kernels/moe.h has the formulas. What router and experts
// compute for a row is decided on the card, without a word from the host.
namespace minfer::cuda {

constexpr int64_t kMaxActiveExperts = 32;

// Backend::route in two launches: one chooses, one sorts.
void route(cudaStream_t stream, const RouteArgs& args);

// Backend::combine_experts. A next norm is Rms, and has no activation.
void combine_experts(cudaStream_t stream, const CombineArgs& args);

// Backend::run_experts, for experts of SwiGLU, by the fastest of the launchers below that takes
// them.
void run_experts(cudaStream_t stream, const ExpertsArgs& args);

// One linear layer of the chosen experts, for the row at each place of a routing.
struct ExpertCall {
  Tensor out;  // [n_pairs, out] half, by place
  // [n_rows, in] half, the row of each pair; or [n_pairs, in], by place.
  Tensor x;
  bool x_by_place = false;
  const Routing& routing;
  ExpertMatrices w;
  const ExpertMatrices* up = nullptr;  // then w is gate: out = swiglu(x gateᵀ, x upᵀ)
  SwiGluClamp clamp = {};              // of that
};

// Computes any shape and format, slowly. expert_gemm is for several rows; it returns false if it
// does not take the shape or the format.
void expert_plain(cudaStream_t stream, const ExpertCall& call);
bool expert_gemm(cudaStream_t stream, const ExpertCall& call);

// run_experts by wgmma, on Hopper cards. It returns false unless the experts have so many rows that
// it is the fastest way, and it takes their shapes and formats.
bool experts_by_wgmma(cudaStream_t stream, const ExpertsArgs& args);
// The same for any number of rows.
bool experts_by_wgmma_always(cudaStream_t stream, const ExpertsArgs& args);

}  // namespace minfer::cuda
