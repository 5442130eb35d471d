#include "kernels/cuda/decode/persistent/step_kernel.cuh"

namespace minfer::cuda {

template StepKernel step_kernel_of<StepWeights::Products>(int, int, bool);

}  // namespace minfer::cuda
