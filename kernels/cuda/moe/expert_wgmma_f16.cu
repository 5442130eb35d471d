#include "kernels/cuda/moe/expert_wgmma_kernels.cuh"

namespace minfer::cuda {

template ExpertGemmKernel expert_wgmma_kernel_of<__half>(ExpertFormat format, bool is_swiglu);

}  // namespace minfer::cuda
