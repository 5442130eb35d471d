#pragma once

#include "kernels/cuda/ptx.cuh"

namespace minfer::cuda {

// exp2_fast and reciprocal_fast are off by 2 units in the last place at most, so that the functions
// below are off by less than 2^-20 of themselves, far inside the rounding to 16 bits; what is below
// 1e-36 is 0.

__device__ inline float exp_fast(float x) { return ptx::exp2_fast(1.4426950408889634f * x); }

// 1 / (1 + exp(-x)); for large |x| the limits, without an overflow on the way
__device__ inline float sigmoid(float x) { return ptx::reciprocal_fast(1.0f + exp_fast(-x)); }

__device__ inline float silu(float x) { return x * sigmoid(x); }

// x / 2 (1 + tanh(u)) = x sigmoid(2 u), which loses nothing to cancellation
__device__ inline float gelu_tanh(float x) {
  const float u = 0.7978845608028654f * (x + 0.044715f * x * x * x);
  return x * sigmoid(2 * u);
}

// x / 2 erfc(-x / sqrt 2). erfc of z = |x| / sqrt 2 is t exp(-z^2 + p(t)), t = 1 / (1 + z / 2),
// with a relative error of 1.2e-7 everywhere, so that the tail keeps its digits. source: Press et
// al., Numerical Recipes in C, 2nd ed., 6.2 (erfcc), a Chebyshev fit
__device__ inline float gelu_erf(float x) {
  const float z = fabsf(x) * 0.7071067811865476f;
  const float t = ptx::reciprocal_fast(1.0f + 0.5f * z);
  float p = 0.17087277f;
  p = fmaf(p, t, -0.82215223f);
  p = fmaf(p, t, 1.48851587f);
  p = fmaf(p, t, -1.13520398f);
  p = fmaf(p, t, 0.27886807f);
  p = fmaf(p, t, -0.18628806f);
  p = fmaf(p, t, 0.09678418f);
  p = fmaf(p, t, 0.37409196f);
  p = fmaf(p, t, 1.00002368f);
  p = fmaf(p, t, -1.26551223f);
  const float erfc = t * exp_fast(fmaf(-z, z, p));
  return 0.5f * x * (x < 0 ? erfc : 2 - erfc);
}

}  // namespace minfer::cuda
