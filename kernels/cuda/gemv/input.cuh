#pragma once

#include <type_traits>

#include "kernels/cuda/gemv/params.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/ptx.cuh"

// Each block stages the input of gemv in shared memory, as half, after the norm if there is one.
namespace minfer::cuda {

// The index at which column k is staged. For packed codes, a lane reads columns 4t ... 4t + 3 of
// two adjacent groups of 16 columns as one 16-byte word: within 32 columns, column 16 h + 4 t + i
// goes to index 8 t + 4 h + i.
template <bool kPacked>
__device__ inline int staged_column(int k) {
  return kPacked ? (k & ~31) | (k & 12) << 1 | (k & 16) >> 2 | (k & 3) : k;
}

struct Eight {
  float at[8];
};

// Columns k ... k + 7 of a row, with zeros past its end. k is a multiple of 8.
template <typename X>
__device__ inline Eight load_eight(const X* row, int k, int n) {
  constexpr int kN = 16 / int(sizeof(X));
  Eight v{};
  if (n % 8 == 0) {  // every row is aligned then
    if (k < n) {
#pragma unroll
      for (int piece = 0; piece < 8; piece += kN) {
        const Vec<X> raw = *reinterpret_cast<const Vec<X>*>(row + k + piece);
#pragma unroll
        for (int i = 0; i < kN; ++i) v.at[piece + i] = to_float(raw[i]);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (k + i < n) v.at[i] = to_float(row[k + i]);
    }
  }
  return v;
}

// The sum of x over the threads of one token, which are n_warps warps (a power of two) from
// first_warp on; all of them get the same bits. Every thread of the block calls it. It ends with
// reads of scratch [kGemvWarps] and without a barrier, so scratch must not be reused before one.
__device__ inline float token_sum(float x, float* scratch, int first_warp, int n_warps) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = scratch[first_warp + (int(threadIdx.x) & (n_warps - 1))];
  for (int offset = n_warps / 2; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(~0u, sum, offset);
  }
  return sum;
}

// Stages columns k ... k + 7 of one token, rounded to T.
template <typename T, bool kPacked>
__device__ inline void store_eight(T* row, int k, const Eight& v) {
  Vec<T, 4> halves[2];
#pragma unroll
  for (int i = 0; i < 8; ++i) halves[i / 4][i % 4] = from_float<T>(v.at[i]);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    *reinterpret_cast<Vec<T, 4>*>(row + staged_column<kPacked>(k + 4 * half)) = halves[half];
  }
}
// The same for an input that is T already, by cp.async from global memory. All eight columns must
// exist. They have arrived after copy_async_wait().
template <typename T, bool kPacked>
__device__ inline void copy_eight(T* row, int k, const T* from) {
  if constexpr (kPacked) {
    ptx::copy_async_8(ptx::shared_address(row + staged_column<true>(k)), from + k);
    ptx::copy_async_8(ptx::shared_address(row + staged_column<true>(k + 4)), from + k + 4);
  } else {
    ptx::copy_async_16(ptx::shared_address(row + k), from + k);
  }
}

// sums[i][token] = sum_factor * the sum of the staged columns of unit i, which has 2^kSumShift
// columns. The tensor cores compute it by mma with a matrix of ones. An mma has eight columns: with
// fewer tokens, it takes several units. Every thread of the block calls it, after a barrier behind
// stage_copied() or stage_normed().
template <typename T, int kSumShift>
__device__ inline void sum_units(float* sums, const T* staged, const GemvParams& p) {
  static_assert(kSumShift >= 4);
  constexpr uint32_t kOnes = std::is_same_v<T, __half> ? 0x3C003C00 : 0x3F803F80;
  const int for_tokens = kGemvWarps / p.warps_per_token;  // n_tokens, rounded up to a power of two
  const int units_at_once = 8 * p.warps_per_token / kGemvWarps;
  const auto token_of = [&](int column) { return column * for_tokens / 8; };
  const auto unit_of = [&](int column) { return column & (units_at_once - 1); };
  const int warp = int(threadIdx.x) / 32, g = int(threadIdx.x) % 32 / 4, t = int(threadIdx.x) % 4;
  const T* const x = staged + min(token_of(g), p.n_tokens - 1) * p.x_stride + t * 8;
#pragma unroll 2
  for (int begin = warp * units_at_once; begin < p.n_sums; begin += kGemvWarps * units_at_once) {
    const int unit = min(begin + unit_of(g), p.n_sums - 1);
    float sum[2][4] = {};  // if kSumShift > 4: sums of the first and second 16 of 32 columns
    if constexpr (kSumShift == 4) {
      const uint2 v = *reinterpret_cast<const uint2*>(x + unit / 2 * 32 + unit % 2 * 4);
      ptx::mma_m16n8k16<T>(sum[0], kOnes, kOnes, kOnes, kOnes, v.x, v.y);
    } else {
#pragma unroll
      for (int column = 0; column < 1 << kSumShift; column += 32) {
        const uint4 v = *reinterpret_cast<const uint4*>(x + (unit << kSumShift) + column);
        ptx::mma_m16n8k16<T>(sum[0], kOnes, kOnes, kOnes, kOnes, v.x, v.y);
        ptx::mma_m16n8k16<T>(sum[1], kOnes, kOnes, kOnes, kOnes, v.z, v.w);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = token_of(2 * t + i), at = begin + unit_of(2 * t + i);
      if (g == 0 && token < p.n_tokens && at < p.n_sums) {  // all rows of the result are alike
        sums[at * p.sum_stride + token] = (sum[0][i] + sum[1][i]) * p.sum_factor;
      }
    }
  }
}

// The columns of one token that a thread stages: eight at `begin`, eight at begin + step, ...
struct InputSlice {
  int token, begin, step;

  __device__ explicit InputSlice(const GemvParams& p) {
    const int n_warps = p.warps_per_token;
    token = int(threadIdx.x) / 32 / n_warps;
    step = n_warps * 32 * 8;
    begin = (int(threadIdx.x) - token * n_warps * 32) * 8;
  }
};

// The norm weights of a thread's first eight columns, read before wait_for_predecessor() (PDL).
template <typename T>
struct FirstWeights {
  Vec<T> raw{};

  __device__ explicit FirstWeights(const GemvParams& p) {
    const int k = InputSlice(p).begin;
    if (p.norm != InputNorm::None && p.in_dim % 8 == 0 && k < p.in_dim) {
      raw = *reinterpret_cast<const Vec<T>*>(static_cast<const T*>(p.norm_weight) + k);
    }
  }
};

// staged[token] = x[token], which is T, with zeros up to x_columns. Called after
// wait_for_predecessor(); a barrier must follow. The rows arrive by cp.async behind what the ring
// has begun to copy.
template <typename T, bool kPacked>
__device__ inline void stage_copied(T* staged, const void* x, const GemvParams& p) {
  const InputSlice slice(p);
  if (slice.token >= p.n_tokens) return;
  const int n = p.in_dim;
  T* const to = staged + slice.token * p.x_stride;
  const T* const from = static_cast<const T*>(x) + int64_t{slice.token} * n;
  for (int k = slice.begin; k < p.x_columns; k += slice.step) {
    if (n % 8 == 0 && k < n) {
      copy_eight<T, kPacked>(to, k, from);
    } else {
      store_eight<T, kPacked>(to, k, load_eight(from, k, n));
    }
  }
  ptx::copy_async_commit();
  ptx::copy_async_wait<0>();
}

// staged[token] = norm(x[token]), rounded to T, of x in F32. scratch holds 32 floats. Every thread
// of the block calls it; else as stage_copied.
template <typename T, bool kPacked>
__device__ inline void stage_normed(T* staged, float* scratch, const void* x, const GemvParams& p,
                                    const FirstWeights<T>& first_weights) {
  const InputSlice slice(p);
  const int n_warps = p.warps_per_token, n = p.in_dim;
  const bool has_token = slice.token < p.n_tokens;
  T* const to = staged + slice.token * p.x_stride;
  const float* const from = static_cast<const float*>(x) + int64_t{has_token ? slice.token : 0} * n;
  const T* const weight = static_cast<const T*>(p.norm_weight);
  const Eight held = load_eight(from, slice.begin, n);
  // Calls f(eight columns of x, first column) for all columns of the thread.
  const auto for_each = [&](auto&& f) {
    f(held, slice.begin);
    for (int k = slice.begin + slice.step; k < n; k += slice.step) f(load_eight(from, k, n), k);
  };

  float mean = 0;
  if (p.norm == InputNorm::Layer) {
    float sum = 0;
    for_each([&](const Eight& v, int) {
#pragma unroll
      for (int i = 0; i < 8; ++i) sum += v.at[i];
    });
    mean = token_sum(sum, scratch, slice.token * n_warps, n_warps) / float(n);
  }
  float sum_sq = 0;
  for_each([&](const Eight& v, int k) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float d = k + i < n ? v.at[i] - mean : 0.0f;
      sum_sq += d * d;
    }
  });
  sum_sq = token_sum(sum_sq, scratch + kGemvWarps, slice.token * n_warps, n_warps);
  const float scale = rsqrtf(sum_sq / float(n) + p.eps);
  if (!has_token) return;

  const T* const bias = static_cast<const T*>(p.norm_bias);
  for (int k = slice.begin; k < p.x_columns; k += slice.step) {
    Eight x = held, w{}, y{};
    if (k != slice.begin) x = load_eight(from, k, n);
    if (k == slice.begin && n % 8 == 0) {
#pragma unroll
      for (int i = 0; i < 8; ++i) w.at[i] = to_float(first_weights.raw[i]);
    } else {
      w = load_eight(weight, k, n);
    }
    const Eight b = bias == nullptr ? Eight{} : load_eight(bias, k, n);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (k + i < n) y.at[i] = (x.at[i] - mean) * scale * w.at[i] + b.at[i];
    }
    store_eight<T, kPacked>(to, k, y);
  }
}

}  // namespace minfer::cuda
