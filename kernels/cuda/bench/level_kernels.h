#pragma once

#include "kernels/bench.h"
#include "kernels/cuda/bench/random_tensors.h"

namespace minfer::cuda {

// Products of levels, as shares of the F16 rate, of which the tensor cores do twice as much, and
// what makes the rows of levels that they multiply; part of time_cuda_kernels.
void time_level_kernels(cudaStream_t stream, TensorPool& inputs, TensorPool& outputs,
                        const KernelChoice& choice);

}  // namespace minfer::cuda
