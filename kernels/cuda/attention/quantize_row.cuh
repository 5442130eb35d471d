#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ptx.cuh"

// A row of keys or values as U8: level 128 + round(x 127 / max|x|), (level - 128) * step. One with
// a NaN has a step that is one.
namespace minfer::cuda::attention {

struct RowScale {
  float step, inverse;  // max / 127, 127 / max
};

__device__ inline float larger_magnitude(float largest, float x) {
  return ptx::max_or_nan(largest, fabsf(x));
}
// Of a row whose lanes give the largest magnitude of their own elements; by all lanes of a warp.
__device__ inline RowScale row_scale(float largest) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    largest = ptx::max_or_nan(largest, __shfl_xor_sync(~0u, largest, d));
  }
  if (largest == 0) return {0, 0};
  return {__fdiv_rn(largest, 127), __fdiv_rn(127, largest)};
}

__device__ inline uint8_t level_of(float x, RowScale scale) {
  const int level = __float2int_rn(x * scale.inverse);
  return uint8_t(128 + max(-127, min(127, level)));
}

}  // namespace minfer::cuda::attention
