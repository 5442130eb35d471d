#pragma once

#include "kernels/cuda/moe/expert_gemm.cuh"

namespace minfer::cuda {

template <typename T>
ExpertGemmKernel expert_gemm_kernel_of(ExpertFormat format, bool is_swiglu) {
  const auto make = [&]<ExpertFormat kFormat>() {
    return ExpertGemmKernel{
        is_swiglu ? expert_gemm_kernel<T, kFormat, true> : expert_gemm_kernel<T, kFormat, false>,
        kExpertStages * ExpertStage<kFormat>::kBytes, kExpertThreads, kExpertRows};
  };
  return with_format(format, make);
}

}  // namespace minfer::cuda
