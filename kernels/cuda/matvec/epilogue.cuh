#pragma once

#include "kernels/cuda/launchers.h"
#include "kernels/cuda/numbers.cuh"

namespace minfer::cuda {

__device__ inline float silu(float x) { return x / (1.0f + expf(-x)); }
__device__ inline float gelu_erf(float x) { return x * normcdff(x); }
// x / 2 * (1 + tanh(u)) without cancellation
__device__ inline float gelu_tanh(float x) {
  const float u = 0.7978845608f * (x + 0.044715f * x * x * x);
  return x / (1.0f + expf(-2.0f * u));
}

// Stores a sum, its bias in it already; `up` for SwiGlu, `residual` the old out for Accumulate.
template <typename T>
__device__ inline void store_result(void* out, int64_t at, bool out_is_f32, Epilogue epilogue,
                                    float sum, float up, float residual) {
  if (epilogue == Epilogue::SwiGlu) sum = silu(sum) * up;
  if (epilogue == Epilogue::GeluErf) sum = gelu_erf(sum);
  if (epilogue == Epilogue::GeluTanh) sum = gelu_tanh(sum);
  if (epilogue == Epilogue::Accumulate) sum += residual;
  if (out_is_f32) {
    static_cast<float*>(out)[at] = sum;
  } else {
    static_cast<T*>(out)[at] = from_float<T>(sum);
  }
}

}  // namespace minfer::cuda
