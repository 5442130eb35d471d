#pragma once

#include <type_traits>

#include "kernels/cuda/gemv/params.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/ptx.cuh"

// Each block stages the input of gemv in shared memory, as half, after the norm if there is one;
// with an RMSNorm of several rows, without the norm's scale (stage_unscaled()).
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

// Columns k ... k + 7 of a row, with zeros past its end. k and n are multiples of 8.
template <typename X>
__device__ inline Eight load_eight(const X* row, int k, int n) {
  constexpr int kN = 16 / int(sizeof(X));
  Eight v{};
  if (k >= n) return v;
#pragma unroll
  for (int piece = 0; piece < 8; piece += kN) {
    const Vec<X> raw = *reinterpret_cast<const Vec<X>*>(row + k + piece);
#pragma unroll
    for (int i = 0; i < kN; ++i) v.at[piece + i] = to_float(raw[i]);
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

// Stages columns k ... k + 7 of one token, rounded to T. Returns the sum of what is staged.
template <typename T, bool kPacked>
__device__ inline float store_eight(T* row, int k, const Eight& v) {
  Vec<T, 4> halves[2];
#pragma unroll
  for (int i = 0; i < 8; ++i) halves[i / 4][i % 4] = from_float<T>(v.at[i]);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    *reinterpret_cast<Vec<T, 4>*>(row + staged_column<kPacked>(k + 4 * half)) = halves[half];
  }
  float sums[2] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) sums[i / 4] += to_float(halves[i / 4][i % 4]);
  return sums[0] + sums[1];
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
// columns. The tensor cores compute it by mma with a matrix of ones. An mma has sixteen rows, which
// are units of all tokens: of one token 16, of two 8, of three or four 4. Every thread of the block
// calls it, after a barrier behind stage_copied(), stage_normed() or stage_unscaled().
template <typename T, int kSumShift>
__device__ inline void sum_units(float* sums, const T* staged, const GemvInput& input,
                                 const GemvParams& p) {
  static_assert(kSumShift >= 4);
  constexpr uint32_t kOnes = std::is_same_v<T, __half> ? 0x3C003C00 : 0x3F803F80;
  const int units_shift = 4 - input.tokens_shift, units_at_once = 1 << units_shift;
  const auto token_of = [&](int row) { return row >> units_shift; };
  const auto unit_of = [&](int row) { return row & (units_at_once - 1); };
  const int warp = int(threadIdx.x) / 32, g = int(threadIdx.x) % 32 / 4, t = int(threadIdx.x) % 4;
  const T* rows[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    rows[i] = staged + min(token_of(g + 8 * i), input.n_tokens - 1) * p.x_stride + t * 8;
  }
#pragma unroll 1
  for (int begin = warp * units_at_once; begin < p.n_sums; begin += kGemvWarps * units_at_once) {
    const int units[2] = {min(begin + unit_of(g), p.n_sums - 1),
                          min(begin + unit_of(g + 8), p.n_sums - 1)};
    float sum[2][4] = {};  // if kSumShift > 4: sums of the first and second 16 of 32 columns
    if constexpr (kSumShift == 4) {
      uint2 v[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        v[i] = *reinterpret_cast<const uint2*>(rows[i] + units[i] / 2 * 32 + units[i] % 2 * 4);
      }
      ptx::mma_m16n8k16<T>(sum[0], v[0].x, v[1].x, v[0].y, v[1].y, kOnes, kOnes);
    } else {
#pragma unroll
      for (int column = 0; column < 1 << kSumShift; column += 32) {
        uint4 v[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          // Odd units begin with their second 32 columns: the banks of even ones are taken.
          const int swapped = kSumShift > 5 ? units[i] % 2 * 32 : 0;
          v[i] = *reinterpret_cast<const uint4*>(rows[i] + (units[i] << kSumShift) +
                                                 (column ^ swapped));
        }
        ptx::mma_m16n8k16<T>(sum[0], v[0].x, v[1].x, v[0].y, v[1].y, kOnes, kOnes);
        ptx::mma_m16n8k16<T>(sum[1], v[0].z, v[1].z, v[0].w, v[1].w, kOnes, kOnes);
      }
    }
    // All columns of the result are alike: lanes of t = 0 and 1 store rows g and g + 8.
    const int row = g + 8 * t, token = token_of(row), at = begin + unit_of(row);
    if (t < 2 && token < input.n_tokens && at < p.n_sums) {
      const float of_row = t == 0 ? sum[0][0] + sum[1][0] : sum[0][2] + sum[1][2];
      sums[at * p.sum_stride + token] = of_row * p.sum_factor;
    }
  }
}

// The columns of one token that a thread stages: eight at `begin`, eight at begin + step, ...
struct InputSlice {
  int token, begin, step;

  __device__ explicit InputSlice(const GemvInput& input) {
    const int n_threads = 32 * input.warps_per_token();  // a power of two
    token = int(threadIdx.x) >> (5 + kGemvWarpsLog - input.tokens_shift);
    step = n_threads * 8;
    begin = (int(threadIdx.x) & (n_threads - 1)) * 8;
  }
};

// Stages a row of T by cp.async, with zeros up to x_columns. Each thread takes its columns, which
// have arrived after copy_async_wait().
template <typename T, bool kPacked>
__device__ inline void copy_row(T* to, const T* from, const InputSlice& slice,
                                const GemvParams& p) {
  for (int k = slice.begin; k < p.x_columns; k += slice.step) {
    if (k < p.in_dim) {
      copy_eight<T, kPacked>(to, k, from);
    } else {
      store_eight<T, kPacked>(to, k, Eight{});
    }
  }
}

// Begins staged[token] = x[token], which is T, as a group of copies. Called after
// wait_for_predecessor(); the group must arrive, and a barrier must follow.
template <typename T, bool kPacked>
__device__ inline void stage_copied(T* staged, const void* x, const GemvInput& input,
                                    const GemvParams& p) {
  const InputSlice slice(input);
  if (slice.token < input.n_tokens) {
    const T* const from = static_cast<const T*>(x) + int64_t{slice.token} * p.in_dim;
    copy_row<T, kPacked>(staged + slice.token * p.x_stride, from, slice, p);
  }
  ptx::copy_async_commit();
}

// Begins to copy the norm's weights, if there is one, to where stage_normed() puts what it
// multiplies by them: as a group of copies, each thread those of its own columns. Called before
// wait_for_predecessor() (PDL), and again by stage_unscaled() if it does not succeed.
template <typename T, bool kPacked>
__device__ inline void stage_norm_weights(T* staged, const GemvInput& input, const GemvParams& p) {
  const InputSlice slice(input);
  if (input.norm != InputNorm::None && slice.token < input.n_tokens) {
    copy_row<T, kPacked>(staged + slice.token * p.x_stride, static_cast<const T*>(p.norm_weight),
                         slice, p);
  }
  ptx::copy_async_commit();
}

// Eight staged columns from k on.
template <typename T, bool kPacked>
__device__ inline Eight staged_eight(const T* row, int k) {
  Eight v;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const T* const at = row + staged_column<kPacked>(k + 4 * half);
    const auto four = *reinterpret_cast<const Vec<T, 4>*>(at);
#pragma unroll
    for (int i = 0; i < 4; ++i) v.at[4 * half + i] = to_float(four[i]);
  }
  return v;
}

// The row of x in F32 whose columns a thread stages behind a norm; the first one if it has none.
__device__ inline const float* row_of_slice(const void* x, const InputSlice& slice,
                                            const GemvInput& input, const GemvParams& p) {
  const int token = slice.token < input.n_tokens ? slice.token : 0;
  return static_cast<const float*>(x) + int64_t{token} * p.in_dim;
}

// What stage_normed() and stage_unscaled() need first of a row of x, to be asked for ahead, after
// wait_for_predecessor().
struct RowBegin {
  Eight columns;      // the first of the thread's slice
  Vec<float> sample;  // of the first 128, if the norm's scale follows

  RowBegin() = default;
  __device__ RowBegin(const void* x, const GemvInput& input, const GemvParams& p) {
    const InputSlice slice(input);
    const float* const from = row_of_slice(x, slice, input, p);
    columns = load_eight(from, slice.begin, p.in_dim);
    const int at = int(threadIdx.x) % 32 * 4;
    const bool has_sample = input.scale_follows && at < p.in_dim;
    sample = has_sample ? *reinterpret_cast<const Vec<float>*>(from + at) : Vec<float>{};
  }
  // The power of two that brings the largest of the row's first 128 columns to 32 to 64, so that
  // the root mean square of the row times it is at least 32 / sqrt(in_dim). It is at most 2^60: a
  // row for which that is too little is so small that eps outweighs it, or has its large values
  // elsewhere, and they overflow. All lanes of a warp call it.
  __device__ float factor() const {
    uint32_t largest = 0;  // magnitudes of floats are ordered as their bits
#pragma unroll
    for (int i = 0; i < 4; ++i) largest = max(largest, __float_as_uint(sample[i]) & 0x7FFFFFFF);
    const uint32_t exponent = __reduce_max_sync(~0u, largest) >> 23;
    return __uint_as_float(min(254 + 5 - min(exponent, 250u), 127 + 60u) << 23);
  }
};

// What stage_unscaled() leaves to the end of the kernel: the sum of squares of each warp's columns,
// and the power of two of each row; 0 if the row was staged with the norm's scale.
struct StagedNorms {
  float sum_sq[kGemvWarps];
  float factor[kMaxGemvTokens];

  // Replaces each factor by the scale of the row's sums. Every warp calls it; a barrier must
  // follow.
  __device__ void finish(const GemvInput& input, const GemvParams& p) {
    // The last warps have the fewest steps, so a token's scale is for one of them.
    const int token = kGemvWarps - 1 - int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
    if (!input.scale_follows || token >= input.n_tokens) return;
    const int n = input.warps_per_token();
    float sum = sum_sq[token * n + (lane & (n - 1))];
    for (int offset = n / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
    if (lane > 0) return;
    float& own = factor[token];
    own = own == 0 ? 1 : rsqrtf(sum / float(p.in_dim) + p.eps) / own;
  }
  __device__ float scale(int token, const GemvInput& input) const {
    return input.scale_follows ? factor[token] : 1;
  }
};
static_assert(sizeof(StagedNorms) == kNormFloats * sizeof(float));

// staged[token] = norm(x[token]), rounded to T, of x in F32, with zeros up to x_columns. Called
// when the thread's copies by stage_norm_weights() have arrived; a barrier must follow. scratch
// holds 32 floats. Every thread of the block calls it.
//   first  RowBegin::columns
template <typename T, bool kPacked>
__device__ inline void stage_normed(T* staged, float* scratch, const Eight& first, const void* x,
                                    const GemvInput& input, const GemvParams& p) {
  const InputSlice slice(input);
  const int n_warps = input.warps_per_token(), n = p.in_dim;
  const float* const from = row_of_slice(x, slice, input, p);
  // Calls f(eight columns of x, first column) for all columns of the thread, and maybe for eight
  // past the end. It is short, since code that runs once takes its time: to ask for two pieces at
  // once made one token of gpt-oss 5 % slower, and more tokens no faster.
  const auto for_each = [&](auto&& f) {
    f(first, slice.begin);
#pragma unroll 1
    for (int k = slice.begin + slice.step; k < p.x_columns; k += slice.step) {
      f(load_eight(from, k, n), k);
    }
  };

  float mean = 0;
  if (input.norm == InputNorm::Layer) {
    float sum = 0;
    for_each([&](const Eight& v, int) {
#pragma unroll
      for (int i = 0; i < 8; ++i) sum += v.at[i];
    });
    mean = token_sum(sum, scratch, slice.token * n_warps, n_warps) / float(n);
  }
  float sum_sq = 0;
  for_each([&](const Eight& v, int k) {
    if (k >= n) return;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float d = v.at[i] - mean;
      sum_sq += d * d;
    }
  });
  sum_sq = token_sum(sum_sq, scratch + kGemvWarps, slice.token * n_warps, n_warps);
  const float scale = rsqrtf(sum_sq / float(n) + p.eps);
  if (slice.token >= input.n_tokens) return;

  T* const to = staged + slice.token * p.x_stride;
  const T* const bias =
      input.norm == InputNorm::Layer ? static_cast<const T*>(p.norm_bias) : nullptr;
  for_each([&](const Eight& v, int k) {
    if (k >= p.x_columns) return;
    const Eight w = staged_eight<T, kPacked>(to, k);
    const Eight b = bias == nullptr ? Eight{} : load_eight(bias, k, n);
    Eight y;  // zeros past the end, where w and b are
#pragma unroll
    for (int i = 0; i < 8; ++i) y.at[i] = (v.at[i] - mean) * scale * w.at[i] + b.at[i];
    store_eight<T, kPacked>(to, k, y);
  });
}

// The same behind an RMSNorm of several rows, which are read once: each is staged times the norm's
// weights and a power of two, and the norm's scale is applied to the sums, by StagedNorms. A value
// is rounded once, with the same relative error as the normed value, but not to the same bits,
// since the scale is no power of two. Ends with a barrier. Should a value be too large for an f16,
// it returns false, with the norm's weights staged again.
//   sums, kSumShift  as sum_units() has them, if GemvInput::makes_sums(); kSumShift 0: there are
//   none
template <typename T, bool kPacked, int kSumShift>
__device__ inline bool stage_unscaled(T* staged, float* sums, StagedNorms& norms,
                                      const RowBegin& begin, const void* x, const GemvInput& input,
                                      const GemvParams& p) {
  const InputSlice slice(input);
  constexpr bool kIsNarrow = std::is_same_v<T, __half>;  // its exponents do not reach far
  const float factor = kIsNarrow ? begin.factor() : 1;
  float sum_sq = 0, largest = 0;
  if (slice.token < input.n_tokens) {
    const float* const from = row_of_slice(x, slice, input, p);
    T* const to = staged + slice.token * p.x_stride;
    Eight v = begin.columns;
    // All lanes of a warp go on together; columns are a multiple of 64.
#pragma unroll 1
    for (int k = slice.begin; (k & ~255) < p.x_columns; k += slice.step) {
      const Eight next = load_eight(from, k + slice.step, p.in_dim);
      const bool is_column = k < p.x_columns;
      const Eight w = is_column ? staged_eight<T, kPacked>(to, k) : Eight{};
      Eight y;  // zeros past the end, where v is
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        sum_sq += v.at[i] * v.at[i];
        y.at[i] = v.at[i] * factor * w.at[i];
        if (kIsNarrow) largest = fmaxf(largest, fabsf(y.at[i]));
      }
      float sum = 0;
      if (is_column) sum = store_eight<T, kPacked>(to, k, y);
      if constexpr (kSumShift > 0) {
        constexpr int kLanes = 1 << (kSumShift - 3);
        if (input.makes_sums()) {
#pragma unroll
          for (int i = 1; i < kLanes; i *= 2) sum += __shfl_xor_sync(~0u, sum, i);
          if (threadIdx.x % kLanes == 0 && is_column) {
            sums[(k >> kSumShift) * p.sum_stride + slice.token] = sum * p.sum_factor;
          }
        }
      }
      v = next;
    }
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) sum_sq += __shfl_xor_sync(~0u, sum_sq, offset);
  if (threadIdx.x % 32 == 0) {
    norms.sum_sq[threadIdx.x / 32] = sum_sq;
    if (slice.token < input.n_tokens) norms.factor[slice.token] = factor;
  }
  if (!__syncthreads_or(largest > 65504)) return true;
  if (threadIdx.x < kMaxGemvTokens) norms.factor[threadIdx.x] = 0;
  stage_norm_weights<T, kPacked>(staged, input, p);
  ptx::copy_async_wait<0>();
  return false;
}

}  // namespace minfer::cuda
