#pragma once

#include "kernels/cuda/attention/softmax_state.cuh"
#include "kernels/cuda/decode/persistent/step_params.h"
#include "kernels/cuda/numbers.cuh"

// The online softmax of attention within the step, and loads of rows of the cache.
namespace minfer::cuda {

// Eight elements of a row of the cache, not converted. What kind of cache it is, kIsU8, is known to
// the compiler: instructions for the other one would be fetched in each layer, too.
struct CacheEight {
  uint4 raw;
  float scale;

  // For missing rows and columns: the zero code is 128.
  template <bool kIsU8>
  __device__ static CacheEight zeros() {
    constexpr uint32_t kZero = kIsU8 ? 0x80808080 : 0;
    return {{kZero, kZero, kZero, kZero}, 0};
  }
};
// Loads from a stage of the ring, whose scales begin `skipped` places behind the first that was
// copied.
template <bool kIsU8>
__device__ inline CacheEight load_eight(const StepAttention& a, const uint8_t* stage, int row,
                                        int at, int skipped) {
  CacheEight x;
  if constexpr (kIsU8) {
    const uint2 raw = *reinterpret_cast<const uint2*>(stage + row * a.head_dim + at);
    x.raw = {raw.x, raw.y, 0, 0};
    x.scale = reinterpret_cast<const float*>(stage + kStageBytes)[skipped + row];
  } else {
    x.raw = *reinterpret_cast<const uint4*>(stage + (row * a.head_dim + at) * 2);
    x.scale = 1;
  }
  return x;
}
template <bool kIsU8>
__device__ inline void unpack(float (&to)[8], const CacheEight& x) {
  const uint32_t words[4] = {x.raw.x, x.raw.y, x.raw.z, x.raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t two = words[i];
    if constexpr (kIsU8) {  // codes less 128, exact
      const uint32_t biased = __byte_perm(words[i / 2], 0x64646464, i % 2 == 0 ? 0x4140 : 0x4342);
      const __half2 code =
          __hsub2(*reinterpret_cast<const __half2*>(&biased), __half2half2(__half(1152)));
      two = *reinterpret_cast<const uint32_t*>(&code);
    }
    const float2 f = __half22float2(*reinterpret_cast<const __half2*>(&two));
    to[2 * i] = f.x;
    to[2 * i + 1] = f.y;
  }
}

// A score with its soft cap, if there is one.
template <typename I>
__device__ inline float capped(float score, const StepAttention& a) {
  return I::kIsPlain ? score : attention::SoftCap{a.cap_log2, a.cap_factor}(score);
}

// The sum over the lanes of a team, in each of them.
template <typename I>
__device__ inline float team_sum(float x, int lanes) {
#pragma unroll
  for (int d = 1; d < I::kHeadDim / 8; d *= 2) {
    if (d >= lanes) break;
    x += __shfl_xor_sync(~0u, x, d);
  }
  return x;
}

// The online softmax of a team of 8, 16 or 32 lanes over the positions that the team has read. Each
// lane has eight elements of a row.
template <typename I>
struct OnlineSoftmax {
  static constexpr int kQueries = I::kQueries;
  float max[kQueries], sum[kQueries], out[kQueries][8];

  __device__ OnlineSoftmax() {
#pragma unroll
    for (int h = 0; h < kQueries; ++h) {
      max[h] = -INFINITY;
      sum[h] = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) out[h][i] = 0;
    }
  }

  // Computes the scores of kN positions, -infinity for those that are not valid; all lanes of the
  // warp call it.
  template <bool kIsU8, int kN>
  __device__ static void scores(float (&to)[kQueries][kN], const CacheEight (&k)[kN],
                                const bool (&valid)[kN], const float (*q)[I::kHeadDim], int at,
                                const StepAttention& a) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      float row[8];
      unpack<kIsU8>(row, k[n]);
#pragma unroll
      for (int h = 0; h < kQueries; ++h) {
        const float4 low = *reinterpret_cast<const float4*>(q[h] + at);
        const float4 high = *reinterpret_cast<const float4*>(q[h] + at + 4);
        float s = row[0] * low.x;
        s = fmaf(row[1], low.y, s);
        s = fmaf(row[2], low.z, s);
        s = fmaf(row[3], low.w, s);
        s = fmaf(row[4], high.x, s);
        s = fmaf(row[5], high.y, s);
        s = fmaf(row[6], high.z, s);
        s = fmaf(row[7], high.w, s);
        to[h][n] = s;
      }
    }
#pragma unroll
    for (int d = 1; d < I::kHeadDim / 8; d *= 2) {
      if (d >= a.lanes()) break;
#pragma unroll
      for (int h = 0; h < kQueries; ++h)
#pragma unroll
        for (int n = 0; n < kN; ++n) to[h][n] += __shfl_xor_sync(~0u, to[h][n], d);
    }
#pragma unroll
    for (int h = 0; h < kQueries; ++h)
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        to[h][n] = valid[n] ? capped<I>(to[h][n] * k[n].scale, a) : -INFINITY;
      }
  }

  // Raises the maximum if a score is above it, and turns the scores into weights.
  template <int kN>
  __device__ void weigh(float (&s)[kQueries][kN]) {
#pragma unroll
    for (int h = 0; h < kQueries; ++h) {
      float most = s[h][0];
#pragma unroll
      for (int n = 1; n < kN; ++n) most = fmaxf(most, s[h][n]);
      const float base = raise(h, most);
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        s[h][n] = ptx::exp2_fast(s[h][n] - base);
        sum[h] += s[h][n];
      }
    }
  }

  // Raises a head's maximum to `most` if that is more; returns what weights are relative to.
  __device__ float raise_max(int h, float most) {
    max[h] = fmaxf(max[h], most);
    return max[h] == -INFINITY ? 0.0f : max[h];
  }
  // Does the same, and rescales the sums so far.
  __device__ float raise(int h, float most) {
    const float before = max[h], base = raise_max(h, most);
    const float factor = ptx::exp2_fast(before - base);
    sum[h] *= factor;
#pragma unroll
    for (int i = 0; i < 8; ++i) out[h][i] *= factor;
    return base;
  }

  __device__ void add(const float (&weight)[kQueries], const float (&row)[8]) {
#pragma unroll
    for (int h = 0; h < kQueries; ++h)
#pragma unroll
      for (int i = 0; i < 8; ++i) out[h][i] = fmaf(weight[h], row[i], out[h][i]);
  }

  // Merges the state of the lane `distance` away into this one.
  __device__ void merge(int distance) {
#pragma unroll
    for (int h = 0; h < kQueries; ++h) {
      const float other_max = __shfl_xor_sync(~0u, max[h], distance);
      const float top = fmaxf(max[h], other_max), base = top == -INFINITY ? 0.0f : top;
      const float own = ptx::exp2_fast(max[h] - base);
      const float other = ptx::exp2_fast(other_max - base);
      sum[h] = sum[h] * own + __shfl_xor_sync(~0u, sum[h], distance) * other;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        out[h][i] = out[h][i] * own + __shfl_xor_sync(~0u, out[h][i], distance) * other;
      }
      max[h] = top;
    }
  }
};

}  // namespace minfer::cuda
