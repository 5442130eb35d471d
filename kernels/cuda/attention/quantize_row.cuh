#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ptx.cuh"

// Quantizes a row of keys or values to U8: code = 128 + round(x * 127 / max|x|), which stands for
// (code - 128) * step. If the row has a NaN, its step is NaN.
namespace minfer::cuda::attention {

struct RowScale {
  float step, inverse;  // max|x| / 127, 127 / max|x|
};

__device__ inline float larger_magnitude(float largest, float x) {
  return ptx::max_or_nan(largest, fabsf(x));
}
// The scale of a row that `n_lanes` adjacent lanes hold, a power of two. Each lane passes the
// largest magnitude of its own elements. All lanes of the warp must call it.
__device__ inline RowScale row_scale(float largest, int n_lanes = 32) {
#pragma unroll
  for (int d = n_lanes / 2; d > 0; d /= 2) {
    largest = ptx::max_or_nan(largest, __shfl_xor_sync(~0u, largest, d));
  }
  if (largest == 0) return {0, 0};
  return {__fdiv_rn(largest, 127), __fdiv_rn(127, largest)};
}

__device__ inline uint8_t code_of(float x, RowScale scale) {
  return uint8_t(128 + max(-127, ptx::round_to_s8(x * scale.inverse)));
}

}  // namespace minfer::cuda::attention
