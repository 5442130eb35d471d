#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/base/tensor.h"

namespace minfer::cuda {

// The CUDA types for the storage types of kernels/base.
template <typename T>
struct DeviceType {
  using type = T;
};
template <>
struct DeviceType<f16> {
  using type = __half;
};
template <>
struct DeviceType<bf16> {
  using type = __nv_bfloat16;
};

// Calls f.template operator()<T>() with T one of float, __half, __nv_bfloat16.
template <typename F>
decltype(auto) visit_device_float(DType dtype, F&& f) {
  return visit_float(
      dtype, [&]<typename T>() { return f.template operator()<typename DeviceType<T>::type>(); });
}

// The same for the half types, which activations and float weights of linear layers have on a card.
template <typename F>
decltype(auto) visit_half(DType dtype, F&& f) {
  if (dtype == DType::F16) return f.template operator()<__half>();
  MINFER_CHECK(dtype == DType::BF16, "a 16-bit float type is expected, not ", dtype);
  return f.template operator()<__nv_bfloat16>();
}

template <typename T>
T* data_of(const Tensor& tensor) {
  return static_cast<T*>(tensor.data);
}

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__half x) { return __half2float(x); }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
template <typename T>
__device__ inline T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline __half from_float<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// kN numbers that one access loads or stores, 16 bytes by default.
template <typename T, int kN = 16 / sizeof(T)>
struct alignas(kN * sizeof(T)) Vec {
  static constexpr int kSize = kN;
  T at[kN];
  __device__ T& operator[](int i) { return at[i]; }
  __device__ const T& operator[](int i) const { return at[i]; }
};

// Makes the compiler keep only the packed vector in registers until it is read again, and not what
// it has computed from it, such as floats of twice the size.
template <typename T, int kN>
__device__ void keep_packed(Vec<T, kN>& vec) {
  if constexpr (sizeof(vec) % 4 == 0) {
    for (size_t i = 0; i < sizeof(vec) / 4; ++i) {
      asm volatile("" : "+r"(reinterpret_cast<uint32_t*>(&vec)[i]));
    }
  }
}

}  // namespace minfer::cuda
