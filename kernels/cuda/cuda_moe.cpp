// Mixtures of experts on a card: kernels/moe.h.

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/moe/moe.h"

namespace minfer::cuda {

void CudaBackend::route(const RouteArgs& args) { cuda::route(stream_.get(), args); }

void CudaBackend::combine_experts(const CombineArgs& args) {
  cuda::combine_experts(stream_.get(), args);
}

void CudaBackend::run_experts(const ExpertsArgs& a) {
  MINFER_CHECK(a.spec.has_swiglu(), "experts with activation ", int(a.spec.activation));
  if (a.routing.n_rows == 0 || experts_by_wgmma(stream_.get(), a)) return;
  const ExpertMatrices up = matrices_of(a.weights, ExpertPart::Up);
  const auto run = [&](const ExpertCall& call) {
    if (!expert_gemm(stream_.get(), call)) expert_plain(stream_.get(), call);
  };
  run({.out = a.hidden,
       .x = a.x,
       .routing = a.routing,
       .w = matrices_of(a.weights, ExpertPart::Gate),
       .up = &up,
       .clamp = a.spec.swiglu_clamp()});
  run({.out = a.out,
       .x = a.hidden,
       .x_by_place = true,
       .routing = a.routing,
       .w = matrices_of(a.weights, ExpertPart::Down)});
}

void CudaBackend::index_experts(MoeWeights& weights) {
  const std::vector<ExpertPlace> places = expert_places(weights);
  const auto n_bytes = narrow<int64_t>(places.size() * sizeof(ExpertPlace));
  weights.index = allocate(DType::U8, {n_bytes});
  uploader_.copy(weights.index.view().data, places.data(), n_bytes);
}

}  // namespace minfer::cuda
