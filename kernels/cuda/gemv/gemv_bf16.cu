#include "kernels/cuda/gemv/gemv_kernel.cuh"

namespace minfer::cuda {

template auto gemv_kernel_of<__nv_bfloat16>(GemvWeights weights, int scales_in_tile,
                                            GemvScales scales, GemvUse use) -> void (*)(GemvParams);

}  // namespace minfer::cuda
