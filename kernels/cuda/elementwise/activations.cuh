#pragma once

#include "kernels/cuda/ptx.cuh"

namespace minfer::cuda {

// exp2_fast and reciprocal_fast are off by 2 units in the last place at most, so that the functions
// below are off by less than 2^-19 of themselves where |x| < 3, far inside the rounding to 16 bits;
// what is below 1e-36 is 0.

__device__ inline float exp_fast(float x) { return ptx::exp2_fast(1.4426950408889634f * x); }

// 1 / (1 + exp(-x)); for large |x| the limits, without an overflow on the way
__device__ inline float sigmoid(float x) { return ptx::reciprocal_fast(1.0f + exp_fast(-x)); }

__device__ inline float silu(float x) { return x * sigmoid(x); }

// x / 2 (1 + tanh(u)) = x sigmoid(2 u), which loses nothing to cancellation
__device__ inline float gelu_tanh(float x) {
  const float u = 0.7978845608028654f * (x + 0.044715f * x * x * x);
  return x * sigmoid(2 * u);
}

// max(x, 0) - |x| erfc(|x| / sqrt 2) / 2. What is left of |x| is t 2^(p(t) - x^2 log2(e) / 2) with
// t = 1 / (1 + 0.265 |x|), so that the tail keeps its digits. Beyond 64 it is 0, and infinities
// have their limits.
//
// p is the polynomial of degree 6 whose largest error is least, that of |x| > 5.6 (to 13.4, where
// numbers end) counted 2.5 times less: 2^-20 of the result, there 2^-18.8. The exponent of 2 is
// rounded once, to 2^-24 of itself. So the result is off by less than 2^-19 where |x| < 3, and
// where it is negative by less than 2^-16 of itself everywhere.
__device__ inline float gelu_erf(float x) {
  const float a = fminf(fabsf(x), 64.0f);
  const float t = ptx::reciprocal_fast(fmaf(0.265f, a, 1.0f));
  float p = 0.41826881f;
  p = fmaf(p, t, -1.4861942f);
  p = fmaf(p, t, 1.5754222f);
  p = fmaf(p, t, -0.53875752f);
  p = fmaf(p, t, 0.86677713f);
  p = fmaf(p, t, 1.4036521f);
  p = fmaf(p, t, -3.2391679f);
  const float tail = ptx::exp2_fast(fmaf(a * a, -0.72134752f, p));
  return fmaf(-(a * t), tail, ptx::max_or_nan(x, 0));
}

// The same by the precise functions of the library: for GEMV, where one thread has one result of a
// row and nothing waits for it.
namespace precise {

__device__ inline float silu(float x) { return x / (1.0f + expf(-x)); }
__device__ inline float gelu_erf(float x) { return x * normcdff(x); }
__device__ inline float gelu_tanh(float x) {
  const float u = 0.7978845608f * (x + 0.044715f * x * x * x);
  return x / (1.0f + expf(-2.0f * u));
}

}  // namespace precise

}  // namespace minfer::cuda
