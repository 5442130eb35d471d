#pragma once

#include "kernels/cuda/numbers.cuh"

namespace minfer::cuda::attention {

// Elements i ... i + 7 of F16 or BF16 as F16; the address is a multiple of 16 bytes.
__device__ inline Vec<__half> load_halves(const void* x, int64_t i, bool is_bf16) {
  const Vec<__half> raw = *reinterpret_cast<const Vec<__half>*>(static_cast<const __half*>(x) + i);
  if (!is_bf16) return raw;
  Vec<__half> halves;
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    halves[e] = __float2half_rn(__uint_as_float(uint32_t{__half_as_ushort(raw[e])} << 16));
  }
  return halves;
}

}  // namespace minfer::cuda::attention
