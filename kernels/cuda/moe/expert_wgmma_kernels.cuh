#pragma once

#include "kernels/cuda/moe/expert_wgmma.cuh"

namespace minfer::cuda {

template <typename T>
ExpertGemmKernel expert_wgmma_kernel_of(GemvWeights weights, bool is_swiglu) {
  const auto make = [&]<GemvWeights kWeights>() {
    return ExpertGemmKernel{is_swiglu ? expert_wgmma_kernel<T, kWeights, true>
                                      : expert_wgmma_kernel<T, kWeights, false>,
                            int(sizeof(WgmmaShared<kWeights>)), kWgmmaThreads, kWgmmaTokens};
  };
  return with_weights(weights, make);
}

}  // namespace minfer::cuda
