#pragma once

#include <cuda_runtime.h>

#include "kernels/base/error.h"

namespace minfer::cuda {

// Throws Memory where the card has none left, else Gpu, with the call and CUDA's own words.
[[noreturn]] inline void throw_cuda_error(cudaError_t status, const char* call) {
  cudaGetLastError();  // an error that is not sticky is told once
  throw Error(status == cudaErrorMemoryAllocation ? ErrorKind::Memory : ErrorKind::Gpu,
              cat(call, ": ", cudaGetErrorString(status)));
}

}  // namespace minfer::cuda

// Around every call of the CUDA runtime, and after each launch with cudaGetLastError().
#define MINFER_CUDA_CHECK(call)                                                  \
  do {                                                                           \
    if (const cudaError_t status_ = (call); status_ != cudaSuccess) [[unlikely]] \
      ::minfer::cuda::throw_cuda_error(status_, #call);                          \
  } while (false)
