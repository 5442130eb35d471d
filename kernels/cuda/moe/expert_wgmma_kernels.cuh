#pragma once

#include "kernels/cuda/moe/expert_wgmma.cuh"

namespace minfer::cuda {

template <typename T>
ExpertGemmKernel expert_wgmma_kernel_of(ExpertFormat format, bool is_swiglu) {
  const auto make = [&]<ExpertFormat kFormat>() {
    return ExpertGemmKernel{
        is_swiglu ? expert_wgmma_kernel<T, kFormat, true> : expert_wgmma_kernel<T, kFormat, false>,
        int(sizeof(WgmmaShared<kFormat>)), kWgmmaThreads, kWgmmaTokens};
  };
  return with_format(format, make);
}

}  // namespace minfer::cuda
