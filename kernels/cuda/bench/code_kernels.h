#pragma once

#include "kernels/bench.h"
#include "kernels/cuda/bench/random_tensors.h"

namespace minfer::cuda {

// Times GEMMs of int8 codes, and the kernels that make rows of codes; part of time_cuda_kernels.
// The bound of the GEMMs is the F16 rate of the tensor cores, whose int8 rate is twice that.
void time_code_kernels(cudaStream_t stream, TensorPool& inputs, TensorPool& outputs,
                       const KernelChoice& choice);

}  // namespace minfer::cuda
