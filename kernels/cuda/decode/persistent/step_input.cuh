#pragma once

#include "kernels/cuda/decode/persistent/step_exchange.cuh"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/reduce.cuh"

// The input of a product in shared memory: each warp waits for the columns that it multiplies, and
// for no others.
namespace minfer::cuda {

// Staged for float weights: f32, of 64 columns first the lower fours of each eight, so that 8 lanes
// with eight columns each read 16 bytes without meeting at a bank.
__device__ inline int float_place(int column) {
  return (column & ~63) | (column & 4) << 3 | (column & 56) >> 1 | (column & 3);
}
// Staged for codes: fixed point of 32 bits, whose digits of 8 bits with a sign are columns of an
// integer instruction. Digits of a kind lie in the order of a lane's codes
// (quant/packed_layout.h): of the 64 columns of a piece of U4, or 32 of U8, first those that lane t
// of four multiplies, in words of four columns.
__device__ inline int digit_place(int word, bool is_u4) {
  const int n_log = is_u4 ? 2 : 1, n = 1 << n_log;  // words of a lane
  return ((word & ~(4 * n - 1)) + word % 4 * n + (word >> 2 & (n - 1))) * 4;
}
// A number times 2^29, below 2^30 in magnitude, as four digits: 256^i times byte i, each a number
// with a sign.
__device__ inline uint32_t digits_of(float x) {
  constexpr uint32_t kHalves = 0x00808080;
  return (uint32_t(__float2int_rn(x)) + kHalves) ^ kHalves;
}
constexpr float kDigitUnit = 0x1p-29f;

// The scale of numbers whose largest magnitude has the bits `top`: infinities and NaN are above all
// others.
struct FixedPoint {
  float unit;      // a power of two that brings the largest into [1, 2); NaN: one is not finite
  float to_fixed;  // 2^29 / unit
  __device__ explicit FixedPoint(uint32_t top) {
    const uint32_t exponent = top >> 23, bounded = max(exponent, 40u);
    unit = exponent == 255 ? NAN : __uint_as_float(bounded << 23);
    to_fixed = __uint_as_float((254 + 29 - bounded) << 23);
  }
};

// Byte i of planes[d]: digit d of the i-th of four numbers.
__device__ inline void digit_planes(uint32_t (&planes)[4], const uint32_t (&bits)[4],
                                    float to_fixed) {
  uint32_t x[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = digits_of(__uint_as_float(bits[i]) * to_fixed);
  const uint32_t low[2] = {__byte_perm(x[0], x[1], 0x5140), __byte_perm(x[2], x[3], 0x5140)};
  const uint32_t high[2] = {__byte_perm(x[0], x[1], 0x7362), __byte_perm(x[2], x[3], 0x7362)};
  planes[0] = __byte_perm(low[0], low[1], 0x5410);
  planes[1] = __byte_perm(low[0], low[1], 0x7632);
  planes[2] = __byte_perm(high[0], high[1], 0x5410);
  planes[3] = __byte_perm(high[0], high[1], 0x7632);
}

__device__ inline float2 floats_of(uint32_t two, bool is_bf16) {
  if (is_bf16) return {__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000u)};
  return __half22float2(*reinterpret_cast<const __half2*>(&two));
}

// What the product's input is made of: words of an epoch, or where there are none yet plain floats;
// and the norm's weight, half or bfloat16.
struct StepSource {
  const uint4* words;
  uint32_t epoch;
  const float* plain;
  const void* norm_weight;
  bool norm_is_bf16;
};

// 1 / rms from the squares of all warps, summed in one order.
__device__ inline float norm_factor(const float* squares, const StepProduct& product, float eps) {
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kStepWarps; ++w) sum += squares[w];
  return rsqrtf(fmaf(sum, product.per_column, eps));
}

// A warp's k-th words of a vector, from its lane's first one: of floats 512 columns of each 4096,
// of codes those of its pieces of a stage (multiply_codes), two stages of U8 at a time.
template <bool kFloat>
__host__ __device__ constexpr int own_word(int k) {
  return kFloat ? k / 4 * (kStageColumns / 4) + k % 4 * 32 : k * kStepConsumers;
}
__device__ inline int first_own_word(StepFormat format) {
  const int lane = thread_index() % 32, warp = thread_index() / 32;
  if (format <= StepFormat::BF16) return warp * (kStageColumns / 4 / kStepWarps) + lane;
  const int log = format == StepFormat::U4 ? 5 : 4;  // words of the warp's pieces of a stage
  return ((lane >> log) * kStepWarps + warp) << log | (lane & ((1 << log) - 1));
}

// The bits of the floats of the lane's words first + own_word(0 ... kBatch - 1) times the norm's
// weight, zeros from n_words on; returns the sum of the squares before that.
template <bool kNorm, bool kFloat, int kBatch>
__device__ inline float take_words(StepWord (&words)[kBatch], const StepSource& source, int first,
                                   int n_words) {
  constexpr auto kPlace = own_word<kFloat>;
  const int n_left = n_words - first;
  uint2 weight[kNorm ? kBatch : 1];
  if constexpr (kNorm) {
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      weight[k] = {};
      if (kPlace(k) < n_left) {
        weight[k] = __ldg(static_cast<const uint2*>(source.norm_weight) + first + kPlace(k));
      }
    }
  }
  if (kNorm && source.plain != nullptr) {
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      words[k] = {};
      if (kPlace(k) < n_left) words[k] = load_plain(source.plain + 4 * (first + kPlace(k)));
    }
  } else {
    await_words<kPlace>(words, source.words + first, n_left, source.epoch);
#pragma unroll
    for (StepWord& word : words) word.drop_epoch();
  }
  float squares = 0;
#pragma unroll
  for (int k = 0; k < kBatch; ++k) {
    if constexpr (kNorm) {
      const float2 low = floats_of(weight[k].x, source.norm_is_bf16);
      const float2 high = floats_of(weight[k].y, source.norm_is_bf16);
      const float of_column[4] = {low.x, low.y, high.x, high.y};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float x = __uint_as_float(words[k].bits[i]);
        squares = fmaf(x, x, squares);
        words[k].bits[i] = __float_as_uint(x * of_column[i]);
      }
    }
  }
  return squares;
}

// The warp's part of f32 numbers for float weights.
template <bool kNorm>
__device__ inline float stage_floats(const StepProduct& product, const StepSource& source,
                                     uint8_t* input) {
  constexpr auto kPlace = own_word<true>;
  constexpr int kBatch = kNorm ? kStepNormWords : kStepInputWords;
  const int n_words = product.in_dim / 4;
  float squares = 0;
#pragma unroll 1
  for (int first = first_own_word(product.format); first < n_words; first += kPlace(kBatch)) {
    StepWord x[kBatch];
    squares += take_words<kNorm, true>(x, source, first, n_words);
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int word = first + kPlace(k);
      if (word < n_words) {
        *reinterpret_cast<uint4*>(input + 4 * float_place(4 * word)) =
            make_uint4(x[k].bits[0], x[k].bits[1], x[k].bits[2], x[k].bits[3]);
      }
    }
  }
  return squares;
}

// The warp's part as digits. `unit`: the power of two that brings its largest number into [1, 2),
// which it was divided by; NaN where a number is not finite.
template <bool kNorm>
__device__ inline float stage_digits(const StepProduct& product, const StepSource& source,
                                     uint8_t* input, float& unit) {
  constexpr auto kPlace = own_word<false>;
  constexpr int kBatch = kNorm ? kStepNormWords : kStepInputWords;
  const bool is_u4 = product.format == StepFormat::U4;
  const int stride = digit_stride(product.in_dim) / 4;
  const int n_padded = (product.in_dim + 63) / 64 * 16;  // columns that are not there are zeros
  const int first = first_own_word(product.format);
  StepWord words[kBatch];
  const float squares = take_words<kNorm, false>(words, source, first, product.in_dim / 4);
  uint32_t top = 0;  // bits of the largest magnitude
#pragma unroll
  for (const StepWord& word : words) {
#pragma unroll
    for (const uint32_t x : word.bits) top = max(top, x & 0x7fffffffu);
  }
  const FixedPoint fixed(__reduce_max_sync(~0u, top));
  unit = fixed.unit;
  auto* const place = reinterpret_cast<uint32_t*>(input + digit_place(first, is_u4));
#pragma unroll
  for (int k = 0; k < kBatch; ++k) {
    if (kPlace(k) >= n_padded - first) break;
    // In the order of the columns of a word of codes: 0 2 1 3 in U4.
    const uint32_t(&bits)[4] = words[k].bits;
    uint32_t planes[4];
    digit_planes(planes, {bits[0], is_u4 ? bits[2] : bits[1], is_u4 ? bits[1] : bits[2], bits[3]},
                 fixed.to_fixed);
    uint32_t* const to = place + kPlace(k);  // a multiple of a piece's words
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i * stride] = planes[i];
  }
  return squares;
}

// Leaves the warp's columns in shared memory, and the sum of their squares before the norm's weight
// in squares_of_warps. Returns the factor of the warp's own sums.
template <bool kNorm>
__device__ inline float stage_input(const StepProduct& product, const StepSource& source,
                                    uint8_t* input, float* squares_of_warps) {
  float unit = 1, squares;
  if (product.format <= StepFormat::BF16) {
    squares = stage_floats<kNorm>(product, source, input);
  } else {
    squares = stage_digits<kNorm>(product, source, input, unit);
  }
  if constexpr (kNorm) {
    squares = warp_reduce(squares, Sum{});
    if (thread_index() % 32 == 0) squares_of_warps[thread_index() / 32] = squares;
  }
  __syncwarp();
  return unit;
}

}  // namespace minfer::cuda
