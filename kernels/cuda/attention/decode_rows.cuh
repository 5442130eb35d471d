#pragma once

#include "kernels/cuda/attention/cache.cuh"
#include "kernels/cuda/attention/decode_tile.cuh"
#include "kernels/cuda/attention/quantize_row.cuh"
#include "kernels/cuda/attention/rotate.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/reduce.cuh"

// How a decode block reads the step's own rows of q, k and v.
namespace minfer::cuda::attention {

__device__ inline float half_from_bits(unsigned short raw, bool is_bf16) {
  return is_bf16 ? __uint_as_float(uint32_t{raw} << 16) : __half2float(__ushort_as_half(raw));
}
__device__ inline unsigned short half_bits(float value, bool is_bf16) {
  return is_bf16 ? __bfloat16_as_ushort(__float2bfloat16_rn(value))
                 : __half_as_ushort(__float2half_rn(value));
}
__device__ inline void store_half(void* x, int64_t i, float value, bool is_bf16) {
  if (is_bf16) {
    static_cast<__nv_bfloat16*>(x)[i] = __float2bfloat16_rn(value);
  } else {
    static_cast<__half*>(x)[i] = __float2half_rn(value);
  }
}

// The angles of a position: a lane holds those of pairs lane + 32 j, which suit any row.
template <int kD>
struct Angles {
  float2 at[kD / 64];
  __device__ void load(const float2* angles, int n_pairs) {
#pragma unroll
    for (int j = 0; j < kD / 64; ++j) {
      const int i = threadIdx.x % 32 + 32 * j;
      at[j] = i < n_pairs ? angles[i] : float2{1, 0};
    }
  }
};

// A row in the registers of a warp, not converted, so that several rows can be loaded at once. Slot
// j of a lane is i = lane + 32 j: pair (i, i + n_pairs) below n_pairs, else element i + n_pairs.
template <int kD>
class RawRow {
 public:
  __device__ void load(const void* x, int64_t row, int head_dim, int n_pairs) {
    const auto* const from = static_cast<const unsigned short*>(x) + row * head_dim;
#pragma unroll
    for (int j = 0; j < kD / 32; ++j) {
      const int i = threadIdx.x % 32 + 32 * j;
      a_[j] = b_[j] = 0;
      if (i < n_pairs) a_[j] = __ldcg(from + i);
      if (i < head_dim - n_pairs) b_[j] = __ldcg(from + i + n_pairs);
    }
  }
  // An RMSNorm of the row with these weights, rounded as it was; the maths of norm_kernel. All
  // lanes of the warp call it.
  __device__ void normalize(const RawRow& weight, float eps, int head_dim, bool is_bf16) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kD / 32; ++j) {
      const float a = half_from_bits(a_[j], is_bf16), b = half_from_bits(b_[j], is_bf16);
      sum += a * a + b * b;
    }
    const float scale = rsqrtf(warp_reduce(sum, Sum{}) / float(head_dim) + eps);
    const auto norm = [&](unsigned short& x, unsigned short w) {
      x = half_bits(half_from_bits(x, is_bf16) * scale * half_from_bits(w, is_bf16), is_bf16);
    };
#pragma unroll
    for (int j = 0; j < kD / 32; ++j) {
      norm(a_[j], weight.a_[j]);
      norm(b_[j], weight.b_[j]);
    }
  }
  // Calls emit(i, value) for each element, f32 and rotated; one lane has each element.
  template <typename Emit>
  __device__ void rotate(const Angles<kD>& angles, int head_dim, int n_pairs, bool is_bf16,
                         Emit emit) const {
#pragma unroll
    for (int j = 0; j < kD / 32; ++j) {
      const int i = threadIdx.x % 32 + 32 * j;
      const float b = half_from_bits(b_[j], is_bf16);
      if (j < kD / 64 && i < n_pairs) {
        const float2 r = rotated(half_from_bits(a_[j], is_bf16), b, angles.at[j % (kD / 64)]);
        emit(i, r.x);
        emit(i + n_pairs, r.y);
      } else if (i < head_dim - n_pairs) {
        emit(i + n_pairs, b);
      }
    }
  }

 private:
  unsigned short a_[kD / 32], b_[kD / 32];
};

// Rounds a row as the cache holds it. Writes it to row `index` of `to` and, if `appends`, to
// position pos of the cache. for_each(f) calls f(i, value) for each element, one lane of a warp for
// each, and the same each time that it is called. A warp calls it.
template <int kD, bool kU8, int kMost, typename ForEach>
__device__ void put_row(const ForEach& for_each, bool is_k, NewRows<kD, kU8, kMost>& to, int index,
                        const Cache& cache, int kv_head, int pos, bool appends) {
  const int lane = threadIdx.x % 32;
  const int64_t at = cache.row(kv_head, pos), first = at * cache.head_dim;
  void* const rows = is_k ? cache.keys : cache.values;
  void* const of_step = to.bytes[is_k ? 0 : 1][index];
  if constexpr (kU8) {
    float largest = 0;
    for_each([&](int, float value) { largest = larger_magnitude(largest, value); });
    const RowScale scale = row_scale(largest);
    if (lane == 0) {
      to.scale[index][is_k ? 0 : 1] = scale.step;
      if (appends) (is_k ? cache.key_scales : cache.value_scales)[at] = scale.step;
    }
    for_each([&](int i, float value) {
      const uint8_t code = code_of(value, scale);
      static_cast<uint8_t*>(of_step)[i] = code;
      if (appends) static_cast<uint8_t*>(rows)[first + i] = code;
    });
  } else {
    for_each([&](int i, float value) {
      const __half x = __float2half_rn(value);
      static_cast<__half*>(of_step)[i] = x;
      if (appends) static_cast<__half*>(rows)[first + i] = x;
    });
  }
}

}  // namespace minfer::cuda::attention
