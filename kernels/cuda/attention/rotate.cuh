#pragma once

#include <cuda_runtime.h>

namespace minfer::cuda::attention {

// (a, b) rotated by the angle with cosine cs.x and sine cs.y. Roundings are explicit, so that every
// kernel and std::fma on the host give the same bits.
__device__ inline float2 rotated(float a, float b, float2 cs) {
  return {fmaf(a, cs.x, -__fmul_rn(b, cs.y)), fmaf(b, cs.x, __fmul_rn(a, cs.y))};
}

}  // namespace minfer::cuda::attention
