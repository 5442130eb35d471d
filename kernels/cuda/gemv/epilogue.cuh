#pragma once

#include "kernels/cuda/elementwise/activations.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/numbers.cuh"

namespace minfer::cuda {

// Applies the epilogue to a sum that includes its bias, and stores it. `up` is for gates,
// `residual` (the old out) for Accumulate.
//   kAny  false: it is Store, Accumulate or SwiGlu
template <typename T, bool kAny>
__device__ inline void store_result(void* out, int64_t at, bool out_is_f32, Epilogue epilogue,
                                    float sum, float up, float residual) {
  if (epilogue == Epilogue::SwiGlu) sum = precise::silu(sum) * up;
  if constexpr (kAny) {
    if (epilogue == Epilogue::GeGluErf) sum = precise::gelu_erf(sum) * up;
    if (epilogue == Epilogue::GeGluTanh) sum = precise::gelu_tanh(sum) * up;
    if (epilogue == Epilogue::GeluErf) sum = precise::gelu_erf(sum);
    if (epilogue == Epilogue::GeluTanh) sum = precise::gelu_tanh(sum);
  }
  if (epilogue == Epilogue::Accumulate) sum += residual;
  if (out_is_f32) {
    static_cast<float*>(out)[at] = sum;
  } else {
    static_cast<T*>(out)[at] = from_float<T>(sum);
  }
}

}  // namespace minfer::cuda
