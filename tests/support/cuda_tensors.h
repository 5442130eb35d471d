#pragma once

#include <gtest/gtest.h>

#include <cstring>

#include "kernels/cuda/device.h"
#include "tests/support/tensors.h"

// The first statement of a test that needs a card.
#define MINFER_NEEDS_CUDA()                            \
  try {                                                \
    ::minfer::cuda::use_device(0);                     \
  } catch (const ::minfer::Error& e) {                 \
    GTEST_SKIP() << "needs a CUDA card: " << e.what(); \
  }                                                    \
  static_assert(true)

namespace minfer::test {

inline DeviceTensor to_device(const Tensor& host) {
  DeviceTensor copy = cuda::allocate_device(host.dtype, host.shape);
  MINFER_CUDA_CHECK(
      cudaMemcpy(copy.view().data, host.data, size_t(host.n_bytes()), cudaMemcpyHostToDevice));
  // A copy from pageable memory may return before it has ended, and other streams do not wait for
  // it.
  MINFER_CUDA_CHECK(cudaStreamSynchronize(nullptr));
  return copy;
}

// Every byte is 0xFF: NaN in every float type, so that an element left unwritten fails its test.
inline DeviceTensor poisoned_device(DType dtype, const Shape& shape) {
  DeviceTensor tensor = cuda::allocate_device(dtype, shape);
  MINFER_CUDA_CHECK(cudaMemset(tensor.view().data, 0xFF, size_t(tensor.view().n_bytes())));
  MINFER_CUDA_CHECK(
      cudaStreamSynchronize(nullptr));  // else a kernel of another stream may be before it
  return tensor;
}

// Copies to the host after all work on the card.
inline HostTensor to_host(const Tensor& device) {
  MINFER_CUDA_CHECK(cudaDeviceSynchronize());
  HostTensor copy(device.dtype, device.shape);
  MINFER_CUDA_CHECK(
      cudaMemcpy(copy.view().data, device.data, size_t(device.n_bytes()), cudaMemcpyDeviceToHost));
  return copy;
}

}  // namespace minfer::test
