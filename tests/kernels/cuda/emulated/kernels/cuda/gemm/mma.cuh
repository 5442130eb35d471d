#pragma once

#include "kernels/cuda/ptx.cuh"

namespace minfer::cuda::ptx {

inline void copy_async_16_or_zero(void* to_shared, const void* from, bool is_there) {
  emulated::copy_async(to_shared, from, is_there ? 16 : 0, is_there ? 0 : 16);
}
template <typename T>
void multiply_16x8x16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, T) {
  const uint32_t b[] = {b0, b1};
  emulated::multiply_16x8x16(d, a, b, emulated::kHalf<T>);
}

}  // namespace minfer::cuda::ptx
