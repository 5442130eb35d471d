#pragma once

#include <type_traits>

#include "kernels/cuda/decode/persistent/step_exchange.cuh"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/reduce.cuh"

// Stages the input of a linear layer in shared memory: each warp waits for the columns that it
// multiplies, and for no others. Only where each multiplies all, as in whole rows of floats, do the
// warps wait for each other.
namespace minfer::cuda {

// The place of a column that is staged as f32, for float weights. In each 64 columns the first four
// of every eight come before the last four, so that 8 lanes with eight columns each read 16 bytes
// without bank conflicts.
__device__ inline int float_place(int column) {
  return (column & ~63) | (column & 4) << 3 | (column & 56) >> 1 | (column & 3);
}
// The place, in bytes, of a word of four columns that is staged for codes: as 23-bit fixed point,
// whose signed 8-bit digits are columns of the integer MMA. All digits of one place are in the
// order of the codes of a lane (quant/packed_layout.h): in 32 columns of U8 or 64 of others, those
// that lane t = 0 of a quad multiplies come first, then those of t = 1, and so on.
// by_64: in 64 columns, as for all codes but U8.
__device__ inline int digit_place(int word, bool by_64) {
  const int n_log = by_64 ? 2 : 1, n = 1 << n_log;  // words of a lane
  return ((word & ~(4 * n - 1)) + word % 4 * n + (word >> 2 & (n - 1))) * 4;
}
constexpr float kDigitUnit = 0x1p-21f;

// The unit of numbers whose largest magnitude has the bits `top`; those of infinity and NaN are
// above all others.
struct FixedPoint {
  // A power of two. The largest number divided by it is below 2 - 2^-5, for which digits() has
  // room, and at least 1 - 2^-6, unless it is below 2^-87. NaN: a number is not finite, or the
  // largest is at least 2 - 2^-5 times 2^127.
  float unit;
  float to_fixed;  // 1 / (unit * kDigitUnit)
  __device__ explicit FixedPoint(uint32_t top) {
    const uint32_t exponent = (top + (1u << 18)) >> 23, bounded = max(exponent, 40u);
    unit = exponent >= 255 ? NAN : __uint_as_float(bounded << 23);
    to_fixed = __uint_as_float((254 + 21 - bounded) << 23);
  }

  // Byte i of planes[d] becomes digit d of number i of four; with swaps, numbers 1 and 2 change
  // places. A number is the sum of 256^d times signed digit d. Added to 1.5 * 2^23, it is an
  // integer in the bits of the float; 0x8080 adds 128 to each of the lower two digits, so that
  // these are bytes, and flipping the top bit of a byte takes 128 away. The third byte has 64 more,
  // from 1.5 * 2^23, and 64 on top of that are 128 too.
  __device__ void digits(uint32_t (&planes)[kDigits], const uint32_t (&bits)[4], bool swaps) const {
    constexpr uint32_t kTop = 0x80808080;
    uint32_t x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[i] = __float_as_uint(fmaf(__uint_as_float(bits[i]), to_fixed, 0x1.8p23f + 0x8080));
    }
    const uint32_t first = swaps ? 0x5140 : 0x5410, second = swaps ? 0x7362 : 0x7632;
    const uint32_t low[2] = {__byte_perm(x[0], x[1], 0x5140), __byte_perm(x[2], x[3], 0x5140)};
    const uint32_t high[2] = {__byte_perm(x[0], x[1], 0x0062), __byte_perm(x[2], x[3], 0x0062)};
    planes[0] = __byte_perm(low[0], low[1], first) ^ kTop;
    planes[1] = __byte_perm(low[0], low[1], second) ^ kTop;
    planes[2] = (__byte_perm(high[0], high[1], first) + 0x40404040) ^ kTop;
  }
};

__device__ inline float2 floats_of(uint32_t two, bool is_bf16) {
  if (is_bf16) return {__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000u)};
  return __half22float2(*reinterpret_cast<const __half2*>(&two));
}

// The source of a linear layer's input: flagged words of an epoch, or plain floats in the first
// layer (`plain`); and the weight of the norm, half or bfloat16.
struct StepSource {
  const uint4* words;
  uint32_t epoch;
  const float* plain;
  const void* norm_weight;
  bool norm_is_bf16;
};

// What an instance that is not plain takes in addition. With a norm behind, the words are rows y of
// an output of wo or down, and the input is x + scale norm(y). norm_weight may be null.
struct ResidualSource : StepSource {
  const void* post_norm_weight;  // null: the words are rows of x
  float* residual;               // [dim], the block's own x if there are norms behind
  float* post_squares;           // [kStepWarps]
  float plain_scale, scale, eps;
};

// And the router, where the input is that of gate and up: step_experts.cuh.
struct RouterSource : ResidualSource {
  const void* router_rows;  // of the block; null: none
  int n_router_rows;
  bool router_is_bf16;
  uint4* logits;                    // flagged words, one for each row
  float (*logit_sums)[kStepWarps];  // [n_router_rows], in shared memory
  float* squares;                   // [kStepWarps], there too: those of stage_input
};
template <typename Source>
constexpr bool kIsResidual = std::is_base_of_v<ResidualSource, Source>;
template <typename Source>
constexpr bool kHasRouter = std::is_base_of_v<RouterSource, Source>;

// 1 / rms from the sums of squares of all warps, added in one order.
__device__ inline float norm_factor(const float* squares, const StepGemv& gemv, float eps) {
  static_assert(kStepWarps == 8);
  const float4 a = reinterpret_cast<const float4*>(squares)[0];
  const float4 b = reinterpret_cast<const float4*>(squares)[1];
  const float sum = a.x + a.y + a.z + a.w + b.x + b.y + b.z + b.w;
  return rsqrtf(fmaf(sum, gemv.per_column, eps));
}

// The offset of the k-th word that a lane has of a vector from its first one. For parts of rows of
// floats a warp has 512 columns of each 4096; for codes, those of its pieces of a stage
// (multiply_codes), of two stages of U8 at a time. For whole rows all threads take turns.
template <bool kParts>
__host__ __device__ constexpr int own_word(int k) {
  return kParts ? k / 4 * (kStageColumns / 4) + k % 4 * 32 : k * kStepConsumers;
}
__device__ inline int first_own_word(StepFormat format) {
  const int lane = thread_index() % 32, warp = thread_index() / 32;
  if (format <= StepFormat::BF16) return warp * (kStageColumns / 4 / kStepWarps) + lane;
  const int words = stage_pieces(format) / kStepWarps * piece_columns(format) / 4;  // of a warp
  const int log = words == 32 ? 5 : 4;
  return ((lane >> log) * kStepWarps + warp) << log | (lane & ((1 << log) - 1));
}

// Multiplies the floats of four columns by those of a norm's weight, halves or bfloat16, and adds
// their squares before that to `squares`.
__device__ inline void weigh_columns(uint32_t (&bits)[4], const uint2& weight, bool is_bf16,
                                     float& squares) {
  const float2 low = floats_of(weight.x, is_bf16), high = floats_of(weight.y, is_bf16);
  const float of_column[4] = {low.x, low.y, high.x, high.y};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float x = __uint_as_float(bits[i]);
    squares = fmaf(x, x, squares);
    bits[i] = __float_as_uint(x * of_column[i]);
  }
}

// Loads the words of a norm's weight, halves or bfloat16, that belong to a lane's words from
// `first` on, n_left at most; zeros where there are none, or no vector.
template <int (*kPlace)(int), int kBatch>
__device__ inline void load_weights(uint2 (&to)[kBatch], const void* vector, int first,
                                    int n_left) {
#pragma unroll
  for (int k = 0; k < kBatch; ++k) {
    to[k] = {};
    if (vector != nullptr && kPlace(k) < n_left) {
      to[k] = __ldg(static_cast<const uint2*>(vector) + first + kPlace(k));
    }
  }
}

// Reads the lane's words first + own_word(0 ... kBatch - 1), zeros from n_words on, and multiplies
// them by the norm's weight, if there is a norm; returns the sum of their squares before that.
template <bool kNorm, bool kParts, int kBatch>
__device__ inline float take_words(StepWord (&words)[kBatch], const StepSource& source, int first,
                                   int n_words) {
  constexpr auto kPlace = own_word<kParts>;
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
    if constexpr (kNorm) weigh_columns(words[k].bits, weight[k], source.norm_is_bf16, squares);
  }
  return squares;
}

// Adds the shares that all warps have of the block's logits, and publishes them before the input is
// staged: so they travel meanwhile.
__device__ inline void publish_logits(const RouterSource& source, const StepGemv& gemv,
                                      float squares) {
  const int lane = thread_index() % 32, warp = warp_index();
  squares = warp_reduce(squares, Sum{});
  if (lane == 0) source.squares[warp] = squares;
  consumers_sync();
  if (warp != 0 || lane >= source.n_router_rows) return;
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kStepWarps; ++w) sum += source.logit_sums[lane][w];
  const float factor = norm_factor(source.squares, gemv, source.eps);
  store_word(source.logits + lane, sum * factor, 0, 0, 0, source.epoch);
}

// The same as take_words of the residual stream, in the instances that are not plain. All warps
// call it: with a norm behind they wait for each other.
template <bool kParts, int kBatch, typename Source>
__device__ inline float take_residual(StepWord (&words)[kBatch], const Source& source,
                                      const StepGemv& gemv, int first, int n_words) {
  constexpr auto kPlace = own_word<kParts>;
  const int n_left = n_words - first;
  const auto load_weight = [&](uint2(&to)[kBatch], const void* vector) {
    load_weights<kPlace>(to, vector, first, n_left);
  };
  // Calls f(element of words[k], that of the vector) for each element.
  const auto for_each = [&](StepWord& word, const uint2& weight, auto f) {
    const float2 low = floats_of(weight.x, source.norm_is_bf16);
    const float2 high = floats_of(weight.y, source.norm_is_bf16);
    const float of_column[4] = {low.x, low.y, high.x, high.y};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      word.bits[i] = __float_as_uint(f(__uint_as_float(word.bits[i]), of_column[i], i));
    }
  };
  uint2 weight[kBatch], post_weight[kBatch];
  load_weight(weight, source.norm_weight);
  load_weight(post_weight, source.post_norm_weight);
  [[maybe_unused]] uint2 router[kBatch];
  if constexpr (kHasRouter<Source>) load_weight(router, source.router_rows);
  float4* const residual = reinterpret_cast<float4*>(source.residual) + first;
  if (source.plain != nullptr) {
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      words[k] = {};
      if (kPlace(k) >= n_left) continue;
      words[k] = load_plain(source.plain + 4 * (first + kPlace(k)));
      for_each(words[k], {}, [&](float x, float, int) { return x * source.plain_scale; });
    }
  } else {
    await_words<kPlace>(words, source.words + first, n_left, source.epoch);
#pragma unroll
    for (StepWord& word : words) word.drop_epoch();
  }
  if (source.post_norm_weight != nullptr) {
    float squares = 0;
#pragma unroll
    for (const StepWord& word : words) {
#pragma unroll
      for (const uint32_t bits : word.bits) {
        squares = fmaf(__uint_as_float(bits), __uint_as_float(bits), squares);
      }
    }
    squares = warp_reduce(squares, Sum{});
    if (thread_index() % 32 == 0) source.post_squares[thread_index() / 32] = squares;
    consumers_sync();
    const float factor = norm_factor(source.post_squares, gemv, source.eps) * source.scale;
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (kPlace(k) >= n_left) continue;
      const float4 before = residual[kPlace(k)];
      const float x[4] = {before.x, before.y, before.z, before.w};
      for_each(words[k], post_weight[k],
               [&](float y, float w, int i) { return fmaf(y * factor, w, x[i]); });
    }
  }
  if (source.residual != nullptr) {
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (kPlace(k) >= n_left) continue;
      const uint32_t(&bits)[4] = words[k].bits;
      residual[kPlace(k)] = make_float4(__uint_as_float(bits[0]), __uint_as_float(bits[1]),
                                        __uint_as_float(bits[2]), __uint_as_float(bits[3]));
    }
  }
  if (source.norm_weight == nullptr) return 0;
  float squares = 0;
#pragma unroll
  for (int k = 0; k < kBatch; ++k) {
    for_each(words[k], weight[k], [&](float x, float w, int) {
      squares = fmaf(x, x, squares);
      return x * w;
    });
  }
  if constexpr (kHasRouter<Source>) {
    if (source.n_router_rows == 0) return squares;
#pragma unroll 1
    for (int row = 0; row < source.n_router_rows; ++row) {
      float sum = 0;
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        const float2 low = floats_of(router[k].x, source.router_is_bf16);
        const float2 high = floats_of(router[k].y, source.router_is_bf16);
        const float of_column[4] = {low.x, low.y, high.x, high.y};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sum = fmaf(__uint_as_float(words[k].bits[i]), of_column[i], sum);
        }
      }
      sum = warp_reduce(sum, Sum{});
      if (thread_index() % 32 == 0) source.logit_sums[row][thread_index() / 32] = sum;
      const auto* const rows = static_cast<const uint2*>(source.router_rows);
      if (row + 1 < source.n_router_rows) load_weight(router, rows + (row + 1) * n_words);
    }
    publish_logits(source, gemv, squares);
  }
  return squares;
}

// Stages the warp's columns, or the thread's turns of whole rows, as f32, kBatch words at a time.
// Those of a ResidualSource fit in one batch.
template <bool kNorm, bool kParts, int kBatch, typename Source>
__device__ inline float stage_floats(const StepGemv& gemv, const Source& source, uint8_t* input) {
  constexpr auto kPlace = own_word<kParts>;
  const int n_words = gemv.in_dim / 4;
  const auto store = [&](const StepWord(&x)[kBatch], int first) {
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int word = first + kPlace(k);
      if (word < n_words) {
        *reinterpret_cast<uint4*>(input + 4 * float_place(4 * word)) =
            make_uint4(x[k].bits[0], x[k].bits[1], x[k].bits[2], x[k].bits[3]);
      }
    }
  };
  float squares = 0;
  const int own = kParts ? first_own_word(gemv.format) : thread_index();
  if constexpr (kIsResidual<Source>) {
    StepWord x[kBatch];
    squares = take_residual<kParts>(x, source, gemv, own, n_words);
    store(x, own);
  } else {
#pragma unroll 1
    for (int begin = 0; begin < n_words; begin += kPlace(kBatch)) {
      StepWord x[kBatch];
      squares += take_words<kNorm, kParts>(x, source, own + begin, n_words);
      store(x, own + begin);
    }
  }
  return squares;
}

// The largest magnitude of a lane's columns; NaN if one is NaN. Each of four chains has one column
// of every word, so that they do not wait for each other.
class LargestMagnitude {
 public:
  __device__ void add(const uint32_t (&bits)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) top_[i] = ptx::max_or_nan(top_[i], fabsf(__uint_as_float(bits[i])));
  }
  // That of the columns of all lanes.
  __device__ FixedPoint fixed_point() const {
    const float top =
        ptx::max_or_nan(ptx::max_or_nan(top_[0], top_[1]), ptx::max_or_nan(top_[2], top_[3]));
    return FixedPoint(__reduce_max_sync(~0u, __float_as_uint(top) & 0x7fffffffu));
  }

 private:
  float top_[4] = {};
};

// Writes a word as digits, `stride` words of memory from one digit to the next.
__device__ inline void store_digits(uint32_t* to, int stride, const uint32_t (&bits)[4],
                                    const FixedPoint& fixed, bool by_64) {
  uint32_t planes[kDigits];
  fixed.digits(planes, bits, by_64);  // columns in the order of a word of codes: 0 2 1 3 in U4
#pragma unroll
  for (int i = 0; i < kDigits; ++i) to[i * stride] = planes[i];
}

// Stages the warp's columns, up to kBatch words of a lane, as digits of numbers divided by `unit`
// (FixedPoint).
template <bool kNorm, int kBatch, typename Source>
__device__ inline float stage_digits(const StepGemv& gemv, const Source& source, uint8_t* input,
                                     float& unit) {
  constexpr auto kPlace = own_word<false>;
  const bool by_64 = gemv.format != StepFormat::U8;
  const int stride = digit_stride(gemv.in_dim) / 4;
  const int n_padded = (gemv.in_dim + 63) / 64 * 16;  // missing columns are zeros
  const int first = first_own_word(gemv.format);
  StepWord words[kBatch];
  float squares;
  if constexpr (kIsResidual<Source>) {
    squares = take_residual<false>(words, source, gemv, first, gemv.in_dim / 4);
  } else {
    squares = take_words<kNorm, false>(words, source, first, gemv.in_dim / 4);
  }
  LargestMagnitude top;
#pragma unroll
  for (const StepWord& word : words) top.add(word.bits);
  const FixedPoint fixed = top.fixed_point();
  unit = fixed.unit;
  auto* const place = reinterpret_cast<uint32_t*>(input + digit_place(first, by_64));
#pragma unroll
  for (int k = 0; k < kBatch; ++k) {
    if (kPlace(k) >= n_padded - first) break;
    store_digits(place + kPlace(k), stride, words[k].bits, fixed, by_64);  // at a piece's begin
  }
  return squares;
}

// The same, without a norm, of more columns than the threads have registers for: until the largest
// of all is known, floats lie where their digits will.
__device__ inline void stage_many_digits(const StepGemv& gemv, const StepSource& source,
                                         uint8_t* input, float& unit) {
  constexpr auto kPlace = own_word<false>;
  constexpr int kBatch = kStepInputWords;
  const bool by_64 = gemv.format != StepFormat::U8;
  const int stride = digit_stride(gemv.in_dim) / 4, n_padded = (gemv.in_dim + 63) / 64 * 16;
  const int first = first_own_word(gemv.format);
  auto* const place = reinterpret_cast<uint32_t*>(input + digit_place(first, by_64));
  LargestMagnitude top;
#pragma unroll 1
  for (int begin = 0; begin < n_padded; begin += kPlace(kBatch)) {
    StepWord words[kBatch];
    take_words<false, false>(words, source, first + begin, gemv.in_dim / 4);
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (begin + kPlace(k) >= n_padded - first) break;
      top.add(words[k].bits);
#pragma unroll
      for (int i = 0; i < 4; ++i) place[begin + kPlace(k) + i * stride] = words[k].bits[i];
    }
  }
  const FixedPoint fixed = top.fixed_point();
  unit = fixed.unit;
  for (int at = 0; at < n_padded - first; at += kPlace(1)) {
    uint32_t bits[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) bits[i] = place[at + i * stride];
    store_digits(place + at, stride, bits, fixed, by_64);
  }
}

// Stages the warp's columns, and leaves the sum of their squares before the norm's weight in
// squares_of_warps. Returns the factor of the warp's own sums.
template <typename I, bool kNorm, typename Source>
__device__ __forceinline__ float stage_input(const StepGemv& gemv, const Source& source,
                                             uint8_t* input, float* squares_of_warps) {
  float unit = 1, squares = 0;
  // One batch for the columns of most models, one for the input of down of many in plain instances,
  // and one for as many as registers hold. The code runs once in a phase, so that fetching it takes
  // longer than running it: a shorter one is faster.
  constexpr int kFew = kStepNormWords / 2, kMid = 12;
  constexpr int kMany = kNorm ? kStepNormWords : kStepInputWords;
  const bool are_few = gemv.in_dim <= most_code_columns(true) / 2;
  [[maybe_unused]] const auto floats = [&] {
    return are_few ? stage_floats<kNorm, true, kFew>(gemv, source, input)
                   : stage_floats<kNorm, true, kMany>(gemv, source, input);
  };
  if constexpr (I::kIsFloat) {
    constexpr int kAll = kStageColumns / 2 / 4 / kStepConsumers;
    squares =
        gemv.has_several_rows() ? stage_floats<kNorm, false, kAll>(gemv, source, input) : floats();
  } else if (!I::kAreCodes && !are_codes(gemv.format)) {
    squares = floats();
  } else if (!I::kIsPlain && !kNorm && gemv.in_dim > most_code_columns(kNorm)) {
    stage_many_digits(gemv, source, input, unit);
  } else if (are_few) {
    squares = stage_digits<kNorm, kFew>(gemv, source, input, unit);
  } else if (I::kIsPlain && !kNorm && gemv.in_dim <= 4 * kStepConsumers * kMid) {
    squares = stage_digits<kNorm, kMid>(gemv, source, input, unit);
  } else {
    squares = stage_digits<kNorm, kMany>(gemv, source, input, unit);
  }
  bool has_squares = false;  // publish_logits has left them
  if constexpr (kHasRouter<Source>) has_squares = source.n_router_rows != 0;
  if (kNorm && !has_squares) {
    squares = warp_reduce(squares, Sum{});
    if (thread_index() % 32 == 0) squares_of_warps[thread_index() / 32] = squares;
  }
  if (I::kIsFloat && gemv.has_several_rows()) {
    consumers_sync();
  } else {
    __syncwarp();
  }
  return unit;
}

}  // namespace minfer::cuda
