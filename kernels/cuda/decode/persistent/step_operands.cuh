#pragma once

#include "kernels/cuda/decode/persistent/step_cursor.cuh"
#include "kernels/cuda/decode/persistent/step_input.cuh"
#include "kernels/cuda/decode/persistent/step_words.cuh"
#include "kernels/cuda/quant/code_four.cuh"

// The operands of the integer MMAs that multiply codes by the digits of x, and what becomes of
// their sums.
namespace minfer::cuda {

// How lane (g, t) of mma.m16n8k32 unpacks a piece into A fragments of rows g and g + 8, for each of
// the kMmas instructions of a piece. Codes of row g + 8 come times kUpperUnit. kZero and kUpperZero
// are the zero codes of both rows, as they come.
template <StepFormat>
struct Codes;
template <>
struct Codes<StepFormat::U4> {
  static constexpr CodeForm kForm = CodeForm::U4;
  static constexpr int kMmas = 2, kUpperUnit = kU4UpperUnit;
  static constexpr int kPieces = stage_pieces(StepFormat::U4);
  static constexpr uint32_t kZero = 0x08080808, kUpperZero = 0x80808080;
  static constexpr int kHighBits = 0;
  static __device__ void get(uint32_t (&a)[4], const uint4& w, int mma) {
    const uint32_t first = word_of_u4(w, 2 * mma), second = word_of_u4(w, 2 * mma + 1);
    a[0] = first & 0x0f0f0f0f;
    a[1] = first & 0xf0f0f0f0;
    a[2] = second & 0x0f0f0f0f;
    a[3] = second & 0xf0f0f0f0;
  }
};
// The entries of a table for the codes, as U8.
template <>
struct Codes<StepFormat::Table> {
  static constexpr CodeForm kForm = CodeForm::Table;
  static constexpr int kMmas = 2, kUpperUnit = 1, kHighBits = 0;
  static constexpr int kPieces = stage_pieces(StepFormat::Table);
  static constexpr uint32_t kZero = 0x80808080, kUpperZero = 0x80808080;
  static __device__ void get(uint32_t (&a)[4], const uint4& w, int mma, const TableBytes& table) {
    const uint32_t words[] = {word_of_u4(w, 2 * mma), word_of_u4(w, 2 * mma + 1)};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t low = look_up_four(table, words[i]);
      const uint32_t high = look_up_four(table, words[i] >> 16);
      a[2 * i] = __byte_perm(low, high, 0x6420);
      a[2 * i + 1] = __byte_perm(low, high, 0x7531);
    }
  }
};
// Codes with upper bits, and of two bits, without a zero code. `high`: the upper bits of the piece.
template <CodeForm kForm_>
struct CodesOfWide {
  static constexpr CodeForm kForm = kForm_;
  static constexpr int kBits = bits_of(kForm), kHighBits = high_bits_of(kForm);
  static constexpr int kMmas = 8 / kBits, kUpperUnit = 1;
  static __device__ void get(uint32_t (&a)[4], const uint4& w, int mma,
                             const HighWords<kHighBits, kMmas / 2>& high) {
    const uint32_t words[4] = {w.x, w.y, w.z, w.w};
    const uint32_t first_word = kBits == 2 ? words[mma] : word_of_u4(w, 2 * mma);
    const uint32_t second_word = kBits == 2 ? first_word >> 4 : word_of_u4(w, 2 * mma + 1);
    const auto first = wide_codes<kBits, kHighBits>(first_word, high.of(2 * mma));
    const auto second = wide_codes<kBits, kHighBits>(second_word, high.of(2 * mma + 1));
    a[0] = first.low_row;
    a[1] = first.high_row;
    a[2] = second.low_row;
    a[3] = second.high_row;
  }
};
template <>
struct Codes<StepFormat::U2> : CodesOfWide<CodeForm::U2> {
  static constexpr int kPieces = stage_pieces(StepFormat::U2);
};
template <>
struct Codes<StepFormat::U3> : CodesOfWide<CodeForm::U3> {
  static constexpr int kPieces = stage_pieces(StepFormat::U3);
};
template <>
struct Codes<StepFormat::U5> : CodesOfWide<CodeForm::U5> {
  static constexpr int kPieces = stage_pieces(StepFormat::U5);
};
template <>
struct Codes<StepFormat::U5Short> : CodesOfWide<CodeForm::U5> {
  static constexpr int kPieces = stage_pieces(StepFormat::U5Short);
};
template <>
struct Codes<StepFormat::U6> : CodesOfWide<CodeForm::U6> {
  static constexpr int kPieces = stage_pieces(StepFormat::U6);
};
template <>
struct Codes<StepFormat::U8> {
  static constexpr int kMmas = 1, kUpperUnit = 1;
  static constexpr int kPieces = stage_pieces(StepFormat::U8);
  static constexpr uint32_t kZero = 0x80808080, kUpperZero = 0x80808080;
  static __device__ void get(uint32_t (&a)[4], const uint4& w, int) {
    a[0] = __byte_perm(w.x, w.y, 0x5410);
    a[1] = __byte_perm(w.x, w.y, 0x7632);
    a[2] = __byte_perm(w.z, w.w, 0x5410);
    a[3] = __byte_perm(w.z, w.w, 0x7632);
  }
};

// The digit of column g of the B operand: columns 2 d and 2 d + 1 are for digit d, and the last two
// have a digit once more, whose sums count nothing (digit_unit).
__device__ inline int digit_of_column(int g) { return min(g / 2, kDigits - 1); }
// What the sums of columns 2 t and 2 t + 1, which lane (g, t) has, are to be multiplied by.
__device__ inline float digit_unit(int t) {
  return t < kDigits ? __uint_as_float(uint32_t(127 + 8 * t) << 23) * kDigitUnit : 0.0f;
}

// The staged digits of the first stage's columns, as lane (g, t) reads them: even columns of the B
// operand are those of one token, and odd ones those of a second token, or once more the same
// digits, of which DigitsOfU4 takes others there. Those of a lane are adjacent in each 64 columns,
// of U8 in each 32 (digit_place).
template <typename L, int kTokens = 1>
__device__ inline const uint8_t* digits_of_lane(const StepShape& shape, const uint8_t* input,
                                                int lane) {
  const int g = lane / 4, t = lane % 4;
  const int of_token = kTokens == 1 ? 0 : g % 2 * shape.token_stride;
  return input + of_token + digit_of_column(g) * digit_stride(shape.in_dim) +
         t * (8 * min(L::kMmas, 2)) + shape.first_stage * (L::kPieces * 32 * L::kMmas);
}
// What a lane needs for all tiles of codes of a round.
struct CodesLane {
  int lane;
  const uint8_t* x;  // digits_of_lane, of the warp's first piece
  // Byte offsets in a stage: the lane's words of that piece, kPieceBytes behind which are those of
  // the warp's second one; and for both pieces the scales and the minimums of rows g and g + 8 for
  // the first unit. Without scales, or minimums, they are not set.
  int words_at, scales_at[2], mins_at[2];
  FixedOperands fixed;  // of WordsOfU4 where it multiplies, else zero codes and kCodesBaseBits
};
// Whether multiply_codes takes the words of codes as they lie (step_words.cuh).
template <StepFormat kFormat, int kScales, int kTokens>
constexpr bool kMultipliesWords = (kFormat == StepFormat::U4) && kScales != 0 && kTokens == 1;
// The first template arguments are those of the multiply_codes that gets it; kKeeps:
// StepInstance::kKeepsConstants. All lanes call it.
template <StepFormat kFormat, int kScales, bool kMins, int kTokens = 1, bool kKeeps = false>
__device__ inline CodesLane codes_lane(const StepShape& shape, const uint8_t* input) {
  using L = Codes<kFormat>;
  constexpr int kOwn = kStagePieces / kStepWarps;
  static_assert(kOwn == 2);
  const int lane = thread_index() % 32, first = warp_index() * kOwn;
  constexpr bool kByWords = kMultipliesWords<kFormat, kScales, kTokens>;
  const int place = kByWords ? DigitsOfU4::place(lane) : 0;
  CodesLane at{lane,
               digits_of_lane<L, kTokens>(shape, input, lane) + first * (32 * L::kMmas) + place,
               kept_of_lane(first * kPieceBytes + lane * 16),
               {},
               {},
               {}};
  if constexpr (kByWords) {
    at.fixed = WordsOfU4<kScales, kMins>::fixed();
  } else {
    at.fixed = fixed_operands(L::kZero, L::kUpperZero, kCodesBaseBits);
  }
  if constexpr (kKeeps) at.fixed.keep();
  // The second piece's, as a constant behind the first one's where it has units of its own.
  const auto place_units = [&](int(&to)[2], int begin, int row_bytes) {
    const auto at_unit = [&](int i) {
      return kept_of_lane(begin + (i * 8 + lane / 4) * row_bytes);
    };
    if constexpr (kScales == 2) {
      to[0] = at_unit(2 * first);
      to[1] = to[0] + 2 * 8 * row_bytes;
    } else {
      const int shift = shape.unit_shift - (kFormat == StepFormat::U4 ? 6 : 5);
      for (int k = 0; k < kOwn; ++k) to[k] = at_unit((first + k) >> shift);
    }
  };
  if constexpr (kScales != 0) place_units(at.scales_at, kStageBytes, 4);
  if constexpr (kMins) place_units(at.mins_at, kStageBytes + shape.stage_scale_bytes, 8);
  return at;
}
// The lane's B operands of a piece.
template <int kMmas>
__device__ inline void load_digits(uint32_t (&b)[kMmas][2], const uint8_t* from) {
  if constexpr (kMmas >= 2) {
#pragma unroll
    for (int i = 0; i < kMmas; i += 2) {
      const uint4 digits = *reinterpret_cast<const uint4*>(from + i * 32);
      b[i][0] = digits.x;
      b[i][1] = digits.y;
      b[i + 1][0] = digits.z;
      b[i + 1][1] = digits.w;
    }
  } else {
    const uint2 digits = *reinterpret_cast<const uint2*>(from);
    b[0][0] = digits.x;
    b[0][1] = digits.y;
  }
}

// The sums over each unit of a piece's columns that the digits of x have; lane (g, t) gets
// those of digit t. b: the B operands of the piece.
template <int kUnit, int kMmas>
__device__ inline void sum_units(int (&sums)[32 * kMmas / kUnit], const uint32_t (&b)[kMmas][2]) {
#pragma unroll
  for (int i = 0; i < 32 * kMmas / kUnit; ++i) {
    int sum[4] = {};
    if constexpr (kUnit == 32) {
      ptx::mma_m16n8k32<true>(sum, {kOnes, kOnes, kOnes, kOnes}, b[i][0], b[i][1], sum);
    } else {
      ptx::mma_m16n8k16<true>(sum, kOnes, kOnes, b[i / 2][i % 2], sum);
    }
    sums[i] = sum[0];
  }
}

// Adds what the four lanes of a quad have of two rows: lane t gets the sum of the first row if t is
// even, else that of the second one.
__device__ inline float sum_of_quad(float first, float second, int t) {
  const bool odd = t & 1;
  const float sum = (odd ? second : first) + __shfl_xor_sync(~0u, odd ? first : second, 1);
  return sum + __shfl_xor_sync(~0u, sum, 2);
}

// Adds the digits of x of each token: lane (g, t) has the sums of digit t for rows g and g + 8 of
// each tile, which are still to be multiplied by of_low and of_high, and by the token's `unit`, at
// the end, so that no product on the way overflows; the four lanes of a quad add theirs, and two of
// them keep each row, or add it to what is in scratch.
template <int kTiles, int kTokens>
__device__ inline void add_digits(const float (&total)[kTiles][2][kTokens], int lane, int warp,
                                  float* scratch, const float (&unit)[kTokens], float of_low,
                                  float of_high, bool adds_to_scratch = false) {
  const int g = lane / 4, t = lane % 4;
  const float digit = digit_unit(t);
  float* const to = scratch + warp * kStepMaxRows + g + 8 * t;
  // All at once: a condition at each would make a jump of it.
  float before[kTokens][kTiles] = {};
  if (adds_to_scratch && t < 2) {
#pragma unroll
    for (int k = 0; k < kTokens; ++k)
#pragma unroll
      for (int j = 0; j < kTiles; ++j) before[k][j] = to[k * kScratchFloats + j * kTileRows];
  }
#pragma unroll
  for (int k = 0; k < kTokens; ++k) {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const float low = total[j][0][k] * (digit * of_low);
      const float high = total[j][1][k] * (digit * of_high);
      float sum = sum_of_quad(low, high, t) * unit[k];
      if (adds_to_scratch) sum += before[k][j];
      if (t < 2) to[k * kScratchFloats + j * kTileRows] = sum;
    }
  }
}

}  // namespace minfer::cuda
