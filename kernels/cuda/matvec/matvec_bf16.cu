#include "kernels/cuda/matvec/matvec_kernel.cuh"

namespace minfer::cuda {

template auto matvec_kernel_of<__nv_bfloat16>(MatvecWeights weights, int scales_in_tile,
                                              MatvecScales scales) -> void (*)(MatvecParams);

}  // namespace minfer::cuda
