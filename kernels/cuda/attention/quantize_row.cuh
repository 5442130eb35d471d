#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ptx.cuh"

// A row of keys or values as U8: code 128 + round(x 127 / max|x|), (code - 128) * step. One with
// a NaN has a step that is one.
namespace minfer::cuda::attention {

struct RowScale {
  float step, inverse;  // max / 127, 127 / max
};

__device__ inline float larger_magnitude(float largest, float x) {
  return ptx::max_or_nan(largest, fabsf(x));
}
// Of a row whose `n_lanes` lanes, a power of two, give the largest magnitude of their own elements;
// by all lanes of a warp.
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
