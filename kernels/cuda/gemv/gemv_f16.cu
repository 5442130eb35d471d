#include "kernels/cuda/gemv/gemv_kernel.cuh"

namespace minfer::cuda {

template auto gemv_kernel_of<__half>(GemvWeights weights, int scales_in_tile, GemvScales scales,
                                     GemvUse use) -> void (*)(GemvParams);

}  // namespace minfer::cuda
