#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.h"

namespace minfer::cuda {
namespace {

// Nothing. Every .cu is compiled for the same cards, so that one kernel stands for all of them.
__global__ void probe_kernel() {}

}  // namespace

cudaError_t kernel_image_status() {
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, probe_kernel);
  if (status != cudaSuccess) cudaGetLastError();
  return status;
}

bool kernels_are_of_sm90() {
  static const bool they_are = [] {
    cudaFuncAttributes attributes{};
    MINFER_CUDA_CHECK(cudaFuncGetAttributes(&attributes, probe_kernel));
    return attributes.ptxVersion >= 90;
  }();
  return they_are;
}

}  // namespace minfer::cuda
