#pragma once

#include "kernels/cuda/launchers.h"

namespace minfer::cuda {

// cuBLAS in place of gemm(): the other way behind CudaOptions::use_cublas, and the yardstick of
// benchmarks. The library is loaded when an object is made, so that a program needs it nowhere
// else.
class Cublas {
 public:
  // On the current card. Throws Gpu where there is no cuBLAS.
  explicit Cublas(cudaStream_t stream);
  ~Cublas();
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;

  // As cuda::gemm, one call of cuBLAS for each part. Biases, gelu and silu are kernels of their own
  // behind it, so that sums are rounded to out's type once before them too. The first call with
  // SwiGlu of a size may allocate: it is not captured.
  void gemm(Tensor x, std::span<const GemmPart> parts, Epilogue epilogue);

  // out = x wᵀ, or out += x wᵀ, out F32: the call of cuBLAS alone, which may be captured.
  // x [m, k], w [n, k] half, out [m, n] half or F32.
  void product(Tensor out, Tensor x, Tensor w, bool accumulate);

 private:
  struct Library;

  cudaStream_t stream_;
  DeviceTensor workspace_, up_;
  std::unique_ptr<Library> library_;
};

}  // namespace minfer::cuda
