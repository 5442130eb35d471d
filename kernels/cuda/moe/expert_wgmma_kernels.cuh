#pragma once

#include "kernels/cuda/moe/expert_wgmma.cuh"

namespace minfer::cuda {

template <typename T>
ExpertGemmKernel expert_wgmma_kernel_of(GemvWeights weights, bool is_swiglu) {
  const auto of = [&]<GemvWeights kWeights>() {
    return ExpertGemmKernel{is_swiglu ? expert_wgmma_kernel<T, kWeights, true>
                                      : expert_wgmma_kernel<T, kWeights, false>,
                            int(sizeof(WgmmaShared<kWeights>)), kWgmmaThreads};
  };
  switch (weights) {
    case GemvWeights::U4:
      return of.template operator()<GemvWeights::U4>();
    case GemvWeights::U8:
      return of.template operator()<GemvWeights::U8>();
    case GemvWeights::Table:
      return of.template operator()<GemvWeights::Table>();
    default:
      return of.template operator()<GemvWeights::Float>();
  }
}

}  // namespace minfer::cuda
