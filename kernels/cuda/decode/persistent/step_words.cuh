#pragma once

#include "kernels/cuda/ptx.cuh"

// Codes of U4 times the digits of one token's x, by integer MMAs that take the words as they lie.
namespace minfer::cuda {

constexpr uint32_t kOnes = 0x01010101;  // in each byte
// Upper codes come times 16. Minus the zero codes, 8, of both, in each byte, with a sign.
constexpr int kU4UpperUnit = 16;
constexpr uint32_t kLessZero = 0xf8f8f8f8, kLessUpperZero = 0x80808080;
// What sums of the codes of a piece begin with: the bits of a float, so that a sum below 2^22 in
// magnitude gives another one. Those of 64 columns of bytes are below it.
constexpr float kCodesBase = 0x1.8p23f;
constexpr int kCodesBaseBits = 0x4b400000;
static_assert(64 * 255 * 128 < 1 << 22);

// Operands that are the same in every step: of a, rows g and g + 8, and c.
struct FixedOperands {
  uint32_t a[4];
  int c[4];

  // Keeps them in registers, from shuffles by different lanes: the compiler would set registers
  // again in each step that it knows to hold a constant, or the same as others. All lanes call it.
  __device__ void keep() {
    const int lane = ptx::read_thread_index() % 32;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[i] = __shfl_sync(~0u, lane == i ? a[i] : 0, i);
      c[i] = __shfl_sync(~0u, lane == i ? c[i] : 0, i);
    }
  }
};
__device__ inline FixedOperands fixed_operands(uint32_t low, uint32_t high, int sum) {
  return {{low, high, low, high}, {sum, sum, sum, sum}};
}

// The B operand of a piece of U4 whose words are the A operand as they lie: words 0 and 2 of a
// lane, the first 32 columns, are row g, and words 1 and 3, the others, row g + 8. Even columns of
// B have the digits of x for the former, odd ones those for the latter; so elements (g, 2 t) and (g
// + 8, 2 t + 1) of the product, 0 and 3 of a lane's registers, are the sums of one row of the tile
// over either half. One instruction takes the lower codes, those of row g, and one the bytes: less
// the lower codes these are the upper ones, of row g + 8, times 16.
struct DigitsOfU4 {
  static constexpr uint32_t kLower = 0x0f0f0f0f;
  uint32_t b0 = 0, b1 = 0;

  DigitsOfU4() = default;
  // digits: those of the piece's columns, from where digits_of_lane() points, plus place(lane).
  __device__ explicit DigitsOfU4(const uint8_t* digits) {
    const uint2 own = *reinterpret_cast<const uint2*>(digits);
    b0 = own.x;
    b1 = own.y;
  }
  __device__ static int place(int lane) { return lane / 4 % 2 * 8; }
  // sums = a b + c, of signed bytes of a; the others take bytes without a sign.
  __device__ void multiply(int (&sums)[4], const uint32_t (&a)[4], const int (&c)[4]) const {
    ptx::mma_m16n8k32<false>(sums, a, b0, b1, c);
  }
  __device__ void multiply_lower(int (&sums)[4], const uint4& w, const int (&c)[4]) const {
    ptx::mma_m16n8k32<true>(sums, {w.x & kLower, w.y & kLower, w.z & kLower, w.w & kLower}, b0, b1,
                            c);
  }
  // Of minus the lower codes, minus 1.
  __device__ void multiply_inverted(int (&sums)[4], const uint4& w, const int (&c)[4]) const {
    const uint32_t a[] = {ptx::inverted_and<kLower>(w.x), ptx::inverted_and<kLower>(w.y),
                          ptx::inverted_and<kLower>(w.z), ptx::inverted_and<kLower>(w.w)};
    ptx::mma_m16n8k32<false>(sums, a, b0, b1, c);
  }
  __device__ void multiply_bytes(int (&sums)[4], const uint4& w, const int (&c)[4]) const {
    ptx::mma_m16n8k32<true>(sums, {w.x, w.y, w.z, w.w}, b0, b1, c);
  }
};

// A piece of U4 with one scale, or one for each half, times the digits of x. With kMins the codes
// have no zero code, and the minimum of a scale's columns is multiplied by the sum of x over them.
template <int kScales, bool kMins>
class WordsOfU4;

// Sums are the bits of floats, without a further addition: `low` is 1.5 plus the sum in units of
// 2^-23, and `high` -3 less the sum in units of 2^-22.
template <bool kMins>
class WordsOfU4<1, kMins> {
 public:
  // What the totals of add() are to be multiplied by, for rows g and g + 8.
  static constexpr float kOfLow = 0x1p23f, kOfHigh = -0x1p22f / kU4UpperUnit;

  // Ones, or minus the zero codes.
  __device__ static FixedOperands fixed() {
    return kMins ? fixed_operands(kOnes, kOnes, 0) : fixed_operands(kLessZero, kLessUpperZero, 0);
  }

  WordsOfU4() = default;
  __device__ WordsOfU4(const uint8_t* digits, const FixedOperands& fixed) : digits_(digits) {
    int sums[4];
    digits_.multiply(sums, fixed.a, {0, 0, 0, 0});
    if constexpr (kMins) {
      sum_of_x_ = float(sums[0] + sums[1]);
    } else {
      zero_low_ = __int_as_float(kLowBits - sums[0] - sums[1]);
      zero_high_ = __int_as_float(-kLowBits - sums[2] - sums[3]);
    }
  }
  // Adds the sums of rows g and g + 8, times their scales. The sums begin with zeros, and not with
  // fixed operands as those of halves do.
  __device__ void add(float& low_total, float& high_total, const uint4& w, const __half2* scale,
                      const float2* min, const FixedOperands&) const {
    int of_low[4], of_both[4];
    digits_.multiply_lower(of_low, w, {0, 0, 0, 0});
    digits_.multiply_bytes(of_both, w, {0, 0, 0, 0});
    const int low = of_low[0] + of_low[3] + kLowBits;
    const int high = of_both[0] + of_both[3] - low;
    const float2 f = __half22float2(*scale);
    low_total = fmaf(__int_as_float(low) - zero_low_, f.x, low_total);
    high_total = fmaf(__int_as_float(high) - zero_high_, f.y, high_total);
    if constexpr (kMins) {
      low_total = fmaf(sum_of_x_ * (1 / kOfLow), min->x, low_total);
      high_total = fmaf(sum_of_x_ * (1 / kOfHigh), min->y, high_total);
    }
  }

 private:
  static constexpr int kLowBits = 0x3fc00000;

  DigitsOfU4 digits_;
  float zero_low_ = 1.5f, zero_high_ = -3.0f, sum_of_x_ = 0;
};

// Sums are the bits of floats again, of kCodesBase plus the sum. That of the bytes begins with
// minus the upper zero codes, which are 16 times the lower ones.
template <bool kMins>
class WordsOfU4<2, kMins> {
 public:
  static constexpr float kOfLow = 1, kOfHigh = 1.0f / kU4UpperUnit;

  // Ones, or minus the upper zero code.
  __device__ static FixedOperands fixed() {
    constexpr uint32_t kWord = kMins ? kOnes : kLessUpperZero;
    return fixed_operands(kWord, kWord, kCodesBaseBits);
  }

  WordsOfU4() = default;
  __device__ WordsOfU4(const uint8_t* digits, const FixedOperands& fixed) : digits_(digits) {
    if constexpr (kMins) {
      int sums[4];
      digits_.multiply(sums, fixed.a, {0, 0, 0, 0});
#pragma unroll
      for (int half = 0; half < 2; ++half) sum_of_x_[half] = float(sums[half]);
#pragma unroll
      for (int i = 0; i < 4; ++i) begin_[i] = fixed.c[i];
    } else {
      digits_.multiply(begin_, fixed.a, fixed.c);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      zero_[half] = fmaf(__int_as_float(begin_[half * 3]), -kOfHigh, kCodesBase * (1 + kOfHigh));
    }
  }
  // The same, and behind a scale and a minimum those of the second half, eight rows further.
  __device__ void add(float& low_total, float& high_total, const uint4& w, const __half2* scales,
                      const float2* mins, const FixedOperands& fixed) const {
    int of_low[4], of_both[4];
    digits_.multiply_lower(of_low, w, fixed.c);
    digits_.multiply_bytes(of_both, w, begin_);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 f = __half22float2(scales[half * 8]);
      const float low = __int_as_float(of_low[half * 3]);
      low_total = fmaf(low - zero_[half], f.x, low_total);
      high_total = fmaf(__int_as_float(of_both[half * 3]) - low, f.y, high_total);
      if constexpr (kMins) {
        const float2 min = mins[half * 8];
        low_total = fmaf(sum_of_x_[half], min.x, low_total);
        high_total = fmaf(sum_of_x_[half] * (1 / kOfHigh), min.y, high_total);
      }
    }
  }

 private:
  DigitsOfU4 digits_;
  int begin_[4] = {};       // of the sum of the bytes
  float zero_[2] = {};      // kCodesBase plus the sum of lower zero codes
  float sum_of_x_[2] = {};  // with kMins
};

// A piece of U4 with a whole number for each half (multiply_products), times the digits of x.
class ProductsOfU4 {
 public:
  // Ones.
  __device__ static FixedOperands fixed() { return fixed_operands(kOnes, kOnes, 0); }

  ProductsOfU4() = default;
  __device__ ProductsOfU4(const uint8_t* digits, const FixedOperands& fixed) : digits_(digits) {
    digits_.multiply(sums_of_x_, fixed.a, {0, 0, 0, 0});
  }
  // The sums of x over the halves.
  __device__ void get_sums_of_x(int (&sums)[2]) const {
    sums[0] = sums_of_x_[0];
    sums[1] = sums_of_x_[1];
  }
  // Those of the codes of row g, negative, and of row g + 8, times 16. Minus the lower codes, added
  // to the sum of the bytes, leave the upper ones alone.
  __device__ void multiply(int (&less_low)[2], int (&high)[2], const uint4& w) const {
    int of_low[4], of_high[4];
    digits_.multiply_inverted(of_low, w, sums_of_x_);
    digits_.multiply_bytes(of_high, w, of_low);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      less_low[half] = of_low[half * 3];
      high[half] = of_high[half * 3];
    }
  }

 private:
  DigitsOfU4 digits_;
  int sums_of_x_[4] = {};
};

}  // namespace minfer::cuda
