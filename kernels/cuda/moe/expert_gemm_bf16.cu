#include "kernels/cuda/moe/expert_gemm_kernels.cuh"

namespace minfer::cuda {

template ExpertGemmKernel expert_gemm_kernel_of<__nv_bfloat16>(ExpertFormat format, bool is_swiglu);

}  // namespace minfer::cuda
