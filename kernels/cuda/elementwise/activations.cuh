#pragma once

#include "kernels/backend.h"
#include "kernels/cuda/ptx.cuh"

namespace minfer::cuda {

// exp2_fast and reciprocal_fast err by at most 2 ulp, so that the functions below have relative
// errors of less than 2^-19 where |x| < 3, far below the rounding to 16 bits. Results below 1e-36
// become 0.

__device__ inline float exp_fast(float x) { return ptx::exp2_fast(1.4426950408889634f * x); }

// 1 / (1 + exp(-x)); for large |x| it gives the limits 0 and 1, without NaN
__device__ inline float sigmoid(float x) { return ptx::reciprocal_fast(1.0f + exp_fast(-x)); }

__device__ inline float silu(float x) { return x * sigmoid(x); }

// What a SwiGluClamp leaves of a gate and of its factor; NaN stays.
struct Clamped {
  float gate, factor;
  __device__ Clamped(float g, float up, const SwiGluClamp& c) {
    gate = g > c.limit ? c.limit : g;
    factor = 1 + (up > c.limit ? c.limit : up < -c.limit ? -c.limit : up);
  }
};

// silu(gate) * up, or, with a limit, Activation::ClampedSwiGlu of Backend::glu
__device__ inline float swiglu(float gate, float up, const SwiGluClamp& clamp) {
  if (clamp.limit == 0) return silu(gate) * up;
  const Clamped c(gate, up, clamp);
  return c.factor * (c.gate * sigmoid(clamp.alpha * c.gate));
}

// x / 2 (1 + tanh(u)) = x sigmoid(2 u), which loses nothing to cancellation
__device__ inline float gelu_tanh(float x) {
  const float u = 0.7978845608028654f * (x + 0.044715f * x * x * x);
  return x * sigmoid(2 * u);
}

// max(x, 0) - |x| erfc(|x| / sqrt 2) / 2. The factor of |x| is approximated as t 2^(p(t) - x^2
// log2(e) / 2) with t = 1 / (1 + 0.265 |x|), so that the tail keeps its relative precision. Beyond
// 64 it is 0, and infinities have their limits.
//
// p is the minimax polynomial of degree 6, with errors at |x| > 5.6 (to 13.4, where floats
// underflow) weighted 2.5 times less: its relative error is 2^-20, and 2^-18.8 there. The exponent
// of 2 is rounded once, by 2^-24 of itself. So the relative error of the result is less than 2^-19
// where |x| < 3, and less than 2^-16 for every negative x.
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

// The same by the precise functions of the CUDA library. GEMV uses them: a thread computes few
// results, so that their speed does not matter.
namespace precise {

__device__ inline float silu(float x) { return x / (1.0f + expf(-x)); }
__device__ inline float swiglu(float gate, float up, const SwiGluClamp& clamp) {
  if (clamp.limit == 0) return silu(gate) * up;
  const Clamped c(gate, up, clamp);
  return c.factor * (c.gate / (1.0f + expf(-clamp.alpha * c.gate)));
}
__device__ inline float gelu_erf(float x) { return x * normcdff(x); }
__device__ inline float gelu_tanh(float x) {
  const float u = 0.7978845608f * (x + 0.044715f * x * x * x);
  return x / (1.0f + expf(-2.0f * u));
}

}  // namespace precise

}  // namespace minfer::cuda
