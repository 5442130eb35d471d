#pragma once

#include "kernels/cuda/moe/expert_gemm.cuh"

namespace minfer::cuda {

template <typename T>
ExpertGemmKernel expert_gemm_kernel_of(GemvWeights weights, bool is_swiglu) {
  const auto make = [&]<GemvWeights kWeights>() {
    return ExpertGemmKernel{
        is_swiglu ? expert_gemm_kernel<T, kWeights, true> : expert_gemm_kernel<T, kWeights, false>,
        kExpertStages * ExpertStage<kWeights>::kBytes, kExpertThreads, kExpertRows};
  };
  return with_weights(weights, make);
}

}  // namespace minfer::cuda
