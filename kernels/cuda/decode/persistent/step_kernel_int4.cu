#include "kernels/cuda/decode/persistent/step_kernel.cuh"

namespace minfer::cuda {

template StepKernel step_kernel_of<StepWeights::Int4>(int, int, bool);
template StepKernel step_kernel_of<StepWeights::ShortInt4>(int, int, bool);

}  // namespace minfer::cuda
