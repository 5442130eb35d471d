// Mixtures of experts on a card: kernels/moe.h.

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/moe/moe.h"

namespace minfer::cuda {

void CudaBackend::route(const RouteArgs& args) { cuda::route(stream_.get(), args); }

void CudaBackend::combine_experts(const CombineArgs& a) {
  const NormArgs* const next = a.next;
  const bool fuses_next = next != nullptr && next->kind == NormKind::Rms && !next->activation;
  CombineArgs args = a;
  if (!fuses_next) args.next = nullptr;
  cuda::combine_experts(stream_.get(), args);
  if (next != nullptr && !fuses_next) norm(*next);
}

void CudaBackend::run_experts(const ExpertsArgs& a) {
  MINFER_CHECK(a.spec.has_swiglu(), "experts with activation ", int(a.spec.activation));
  cuda::run_experts(stream_.get(), a);
}

void CudaBackend::index_experts(MoeWeights& weights) {
  const std::vector<ExpertPlace> places = expert_places(weights);
  const auto n_bytes = narrow<int64_t>(places.size() * sizeof(ExpertPlace));
  weights.index = allocate(DType::U8, {n_bytes});
  uploader_.copy(weights.index.view().data, places.data(), n_bytes);
}

}  // namespace minfer::cuda
