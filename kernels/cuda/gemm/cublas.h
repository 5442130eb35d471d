#pragma once

#include "kernels/cuda/launchers.h"

namespace minfer::cuda {

// Computes gemm() with cuBLAS: if CudaOptions::use_cublas is set, and as the baseline of
// benchmarks. The constructor loads the library, so that a program needs it only if it makes an
// object.
class Cublas {
 public:
  // Uses the current card. Throws Gpu if there is no cuBLAS.
  explicit Cublas(cudaStream_t stream);
  ~Cublas();
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;

  // The same as cuda::gemm, by one cuBLAS call per part. Biases, GELU and SwiGLU are separate
  // kernels, so sums are also rounded to out's type before them. A call with a gate may allocate
  // memory if no earlier call was as large, so a graph must not capture it.
  void gemm(Tensor x, std::span<const GemmPart> parts, Epilogue epilogue);

  // out = x wᵀ, or out += x wᵀ with out F32: only the cuBLAS call, which a graph may capture.
  // x [m, k], w [n, k] half, out [m, n] half or F32.
  void gemm(Tensor out, Tensor x, Tensor w, bool accumulate);

 private:
  struct Library;

  cudaStream_t stream_;
  DeviceTensor workspace_, up_;
  std::unique_ptr<Library> library_;
};

}  // namespace minfer::cuda
