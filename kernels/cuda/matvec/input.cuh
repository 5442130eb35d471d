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

struct Four {
  float at[4];
};

// Columns k ... k + 3 of a row, zeros behind its end. k is a multiple of 4.
template <typename X>
__device__ inline Four load_four(const X* row, int k, int n) {
  Four v{};
  if (n % 4 == 0) {  // every row is aligned then
    if (k < n) {
      const Vec<X, 4> raw = *reinterpret_cast<const Vec<X, 4>*>(row + k);
      for (int i = 0; i < 4; ++i) v.at[i] = to_float(raw[i]);
    }
  } else {
    for (int i = 0; i < 4; ++i) {
      if (k + i < n) v.at[i] = to_float(row[k + i]);
    }
  }
  return v;
}

// Of the threads of one token, whose warps begin at first_warp; the same order for all. Every
// thread of the block calls it; ends in use of scratch [kMatvecWarps], which is not used again.
__device__ inline float token_sum(float x, float* scratch, int first_warp, int n_warps) {
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < n_warps; ++w) sum += scratch[first_warp + w];
  return sum;
}

template <typename T, bool kPacked>
__device__ inline void store_four(T* row, int k, const Four& v) {
  struct alignas(8) Halves {
    T at[4];
  } halves;
  for (int i = 0; i < 4; ++i) halves.at[i] = from_float<T>(v.at[i]);
  *reinterpret_cast<Halves*>(row + staged_column<kPacked>(k)) = halves;
}

// staged[token] = x[token], or its norm, rounded to T; zeros up to x_columns. scratch holds 32
// floats. Every thread of the block calls it, after wait_for_predecessor(); a barrier must follow.
template <typename T, bool kPacked>
__device__ inline void stage_input(T* staged, float* scratch, const MatvecParams& p) {
  constexpr int kHeld = 2;  // of what a thread reads, kept for the second pass
  const int n_warps = p.warps_per_token, token = int(threadIdx.x) / 32 / n_warps;
  const int step = n_warps * 32 * 4, begin = (int(threadIdx.x) - token * n_warps * 32) * 4;
  const bool has_token = token < p.n_tokens;
  T* const to = staged + token * p.x_stride;
  const int n = p.in_dim;

  if (p.norm == InputNorm::None) {
    if (!has_token) return;
    const T* const from = static_cast<const T*>(p.x) + int64_t{token} * n;
    for (int k = begin; k < p.x_columns; k += step) {
      store_four<T, kPacked>(to, k, load_four(from, k, n));
    }
    return;
  }

  const float* const from = static_cast<const float*>(p.x) + int64_t{has_token ? token : 0} * n;
  const T* const weight = static_cast<const T*>(p.norm_weight);
  Four held[kHeld], held_weight[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    held[j] = load_four(from, begin + j * step, n);
    held_weight[j] = load_four(weight, begin + j * step, n);
  }
  // f(columns of x, first column) for all that the thread owns
  const auto for_each = [&](auto&& f) {
#pragma unroll
    for (int j = 0; j < kHeld; ++j) f(held[j], begin + j * step);
    for (int k = begin + kHeld * step; k < n; k += step) f(load_four(from, k, n), k);
  };

  float mean = 0;
  if (p.norm == InputNorm::Layer) {
    float sum = 0;
    for_each([&](const Four& v, int) { sum += (v.at[0] + v.at[1]) + (v.at[2] + v.at[3]); });
    mean = token_sum(sum, scratch, token * n_warps, n_warps) / float(n);
  }
  float sum_sq = 0;
  for_each([&](const Four& v, int k) {
    for (int i = 0; i < 4; ++i) {
      const float d = k + i < n ? v.at[i] - mean : 0.0f;
      sum_sq += d * d;
    }
  });
  sum_sq = token_sum(sum_sq, scratch + kMatvecWarps, token * n_warps, n_warps);
  const float scale = rsqrtf(sum_sq / float(n) + p.eps);
  if (!has_token) return;

  const T* const bias = static_cast<const T*>(p.norm_bias);
  const auto store = [&](const Four& v, const Four& w, int k) {
    Four y{};
    const Four b = bias == nullptr ? Four{} : load_four(bias, k, n);
    for (int i = 0; i < 4; ++i) {
      if (k + i < n) y.at[i] = (v.at[i] - mean) * scale * w.at[i] + b.at[i];
    }
    store_four<T, kPacked>(to, k, y);
  };
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    if (begin + j * step < p.x_columns) store(held[j], held_weight[j], begin + j * step);
  }
  for (int k = begin + kHeld * step; k < p.x_columns; k += step) {
    store(load_four(from, k, n), load_four(weight, k, n), k);
  }
}

// sums[i][token] = sum of the staged columns of unit i, in their order: what mins are multiplied
// by.
template <typename T>
__device__ inline void sum_units(float* sums, const T* staged, const MatvecParams& p) {
  const int columns = 1 << p.sum_shift;
  for (int i = int(threadIdx.x); i < p.n_sums * p.sum_stride; i += kMatvecThreads) {
    const int unit = i / p.sum_stride, token = i % p.sum_stride;
    float sum = 0;
    if (token < p.n_tokens) {
      const T* const row = staged + token * p.x_stride;
      for (int k = unit << p.sum_shift; k < min((unit << p.sum_shift) + columns, p.x_columns);
           k += 4) {
        const T* const four = row + staged_column<true>(k);
        for (int j = 0; j < 4; ++j) sum += to_float(four[j]);
      }
    }
    sums[i] = sum;
  }
}

}  // namespace minfer::cuda
