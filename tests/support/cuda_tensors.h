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

inline void expect_same_bytes(const Tensor& device, const HostTensor& want,
                              const std::string& what) {
  if (!device) return;
  const HostTensor got = to_host(device);
  if (std::memcmp(got.view().data, want.view().data, size_t(want.view().n_bytes())) == 0) return;
  const auto* a = static_cast<const uint8_t*>(got.view().data);
  const auto* b = static_cast<const uint8_t*>(want.view().data);
  for (int64_t i = 0; i < want.view().n_bytes(); ++i)
    ASSERT_EQ(a[i], b[i]) << what << ", byte " << i;
}

}  // namespace minfer::test
