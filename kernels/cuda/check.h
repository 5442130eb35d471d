#pragma once

#include <cuda_runtime.h>

#include "kernels/base/error.h"

namespace minfer::cuda {

// Throws Memory if the card has none left, else Gpu, with the call and CUDA's own message.
[[noreturn]] inline void throw_cuda_error(cudaError_t status, const char* call) {
  cudaGetLastError();  // clears an error that is not sticky
  throw Error(status == cudaErrorMemoryAllocation ? ErrorKind::Memory : ErrorKind::Gpu,
              cat(call, ": ", cudaGetErrorString(status)));
}

}  // namespace minfer::cuda

// To wrap every call of the CUDA runtime, and cudaGetLastError() after each launch.
#define MINFER_CUDA_CHECK(call)                                                  \
  do {                                                                           \
    if (const cudaError_t status_ = (call); status_ != cudaSuccess) [[unlikely]] \
      ::minfer::cuda::throw_cuda_error(status_, #call);                          \
  } while (false)
