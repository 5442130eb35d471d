#pragma once

#include "kernels/bench.h"
#include "kernels/cuda/bench/random_tensors.h"

namespace minfer::cuda {

// Products of codes, as shares of the F16 rate, of which the tensor cores do twice as much, and
// what makes the rows of codes that they multiply; part of time_cuda_kernels.
void time_code_kernels(cudaStream_t stream, TensorPool& inputs, TensorPool& outputs,
                       const KernelChoice& choice);

}  // namespace minfer::cuda
