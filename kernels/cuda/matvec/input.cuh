#pragma once

#include "kernels/cuda/matvec/params.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/ptx.cuh"

// The input of matvec in shared memory, once a block: half, normed where asked.
namespace minfer::cuda {

// Where column k is staged. Packed levels want the columns 4t ... 4t + 3 of two adjacent 16 in one
// word of 16 bytes: of 32 columns, 16 h + 4 t + i goes to 8 t + 4 h + i.
template <bool kPacked>
__device__ inline int staged_column(int k) {
  return kPacked ? (k & ~31) | (k & 12) << 1 | (k & 16) >> 2 | (k & 3) : k;
}

struct Eight {
  float at[8];
};

// Columns k ... k + 7 of a row, zeros behind its end. k is a multiple of 8.
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

// Of the threads of one token, n_warps of them from first_warp on, a power of two; the same bits
// for all. Every thread of the block calls it; ends in use of scratch [kMatvecWarps], which is not
// used again.
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

// One token's columns k ... k + 7.
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
// The same of T as it is, from global memory; none of the columns is behind the end. They are there
// after copy_async_wait().
template <typename T, bool kPacked>
__device__ inline void copy_eight(T* row, int k, const T* from) {
  if constexpr (kPacked) {
    ptx::copy_async_8(ptx::shared_address(row + staged_column<true>(k)), from + k);
    ptx::copy_async_8(ptx::shared_address(row + staged_column<true>(k + 4)), from + k + 4);
  } else {
    ptx::copy_async_16(ptx::shared_address(row + k), from + k);
  }
}

// The sum of columns k ... k + 7, which this thread has staged.
template <typename T>
__device__ inline float sum_of_eight(const T* row, int k) {
  float sum = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const auto v = *reinterpret_cast<const Vec<T, 4>*>(row + staged_column<true>(k + 4 * half));
#pragma unroll
    for (int i = 0; i < 4; ++i) sum += to_float(v[i]);
  }
  return sum;
}

// What a thread of stage_input() owns: of one token, eight columns of every `step` from `begin` on.
struct InputShare {
  int token, begin, step;

  __device__ explicit InputShare(const MatvecParams& p) {
    const int n_warps = p.warps_per_token;
    token = int(threadIdx.x) / 32 / n_warps;
    step = n_warps * 32 * 8;
    begin = (int(threadIdx.x) - token * n_warps * 32) * 8;
  }
  // The first column of its warp from k on.
  __device__ int of_warp(int k) const { return k - int(threadIdx.x) % 32 * 8; }
};

// The raw norm weights of a thread's first columns: read before the predecessor is done.
template <typename T>
struct FirstWeights {
  Vec<T> raw{};

  __device__ explicit FirstWeights(const MatvecParams& p) {
    const int k = InputShare(p).begin;
    if (p.norm != InputNorm::None && p.in_dim % 8 == 0 && k < p.in_dim) {
      raw = *reinterpret_cast<const Vec<T>*>(static_cast<const T*>(p.norm_weight) + k);
    }
  }
};

// staged[token] = x[token], or its norm, rounded to T; zeros up to x_columns. sums[i][token] = the
// sum of the staged columns of unit i, times sum_factor. scratch holds 32 floats. Every thread of
// the block calls it, after wait_for_predecessor(); a barrier must follow.
template <typename T, bool kPacked>
__device__ inline void stage_input(T* staged, float* sums, float* scratch, const MatvecParams& p,
                                   const FirstWeights<T>& first_weights) {
  const InputShare share(p);
  const int n_warps = p.warps_per_token, n = p.in_dim;
  const bool has_token = share.token < p.n_tokens;
  T* const to = staged + share.token * p.x_stride;
  // Sums of units, of columns that this thread has staged; adjacent lanes have adjacent ones.
  const auto sum_up = [&] {
    if constexpr (kPacked) {
      if (p.n_sums == 0) return;
      constexpr int kAtOnce = 4;  // which wait for their lanes together
      const int n_lanes = 1 << p.sum_shift >> 3;
      for (int k = share.begin; share.of_warp(k) < p.x_columns; k += kAtOnce * share.step) {
        float sum[kAtOnce];
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          const int at = k + j * share.step;
          sum[j] = at < p.x_columns ? sum_of_eight(to, at) : 0;
        }
#pragma unroll
        for (int offset = 1; offset < 16; offset *= 2) {
          if (offset >= n_lanes) break;
#pragma unroll
          for (int j = 0; j < kAtOnce; ++j) sum[j] += __shfl_xor_sync(~0u, sum[j], offset);
        }
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          const int at = k + j * share.step;
          if (at >= p.x_columns || (at & ((1 << p.sum_shift) - 1)) != 0) continue;
          sums[(at >> p.sum_shift) * p.sum_stride + share.token] = sum[j] * p.sum_factor;
        }
      }
    }
  };

  if (p.norm == InputNorm::None) {
    if (!has_token) return;
    const T* const from = static_cast<const T*>(p.x) + int64_t{share.token} * n;
    for (int k = share.begin; k < p.x_columns; k += share.step) {
      if (n % 8 == 0 && k < n) {
        copy_eight<T, kPacked>(to, k, from);
      } else {
        store_eight<T, kPacked>(to, k, load_eight(from, k, n));
      }
    }
    ptx::copy_async_commit();
    ptx::copy_async_wait<0>();
    return sum_up();
  }

  const float* const from =
      static_cast<const float*>(p.x) + int64_t{has_token ? share.token : 0} * n;
  const T* const weight = static_cast<const T*>(p.norm_weight);
  const Eight held = load_eight(from, share.begin, n);
  // f(columns of x, first column) for all that the thread owns
  const auto for_each = [&](auto&& f) {
    f(held, share.begin);
    for (int k = share.begin + share.step; k < n; k += share.step) f(load_eight(from, k, n), k);
  };

  float mean = 0;
  if (p.norm == InputNorm::Layer) {
    float sum = 0;
    for_each([&](const Eight& v, int) {
#pragma unroll
      for (int i = 0; i < 8; ++i) sum += v.at[i];
    });
    mean = token_sum(sum, scratch, share.token * n_warps, n_warps) / float(n);
  }
  float sum_sq = 0;
  for_each([&](const Eight& v, int k) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float d = k + i < n ? v.at[i] - mean : 0.0f;
      sum_sq += d * d;
    }
  });
  sum_sq = token_sum(sum_sq, scratch + kMatvecWarps, share.token * n_warps, n_warps);
  const float scale = rsqrtf(sum_sq / float(n) + p.eps);
  if (!has_token) return;

  const T* const bias = static_cast<const T*>(p.norm_bias);
  for (int k = share.begin; k < p.x_columns; k += share.step) {
    Eight x = held, w{}, y{};
    if (k != share.begin) x = load_eight(from, k, n);
    if (k == share.begin && n % 8 == 0) {
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
  sum_up();
}

}  // namespace minfer::cuda
