#include "kernels/base/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace minfer {
namespace {

// The value of a binary16 by its definition: (-1)^s * 2^(e - 15) * 1.m, subnormal below.
double f16_value(uint16_t bits) {
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  if (exponent == 31) return mantissa == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

TEST(Half, EveryF16IsReadExactlyAndWrittenBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const f16 h{static_cast<uint16_t>(bits)};
    const double want = f16_value(h.bits);
    const float got = to_f32(h);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(got)) << bits;
      ASSERT_TRUE(std::isnan(to_f32(to_f16(got)))) << bits;
    } else {
      ASSERT_EQ(double{got}, want) << bits;
      ASSERT_EQ(std::signbit(got), std::signbit(want)) << bits;
      ASSERT_EQ(to_f16(got).bits, h.bits);
    }
  }
}

// Between two neighbours the nearer one, at the middle the one with the even mantissa.
TEST(Half, F16RoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const float low = to_f32(f16{uint16_t(bits)}), high = to_f32(f16{uint16_t(bits + 1)});
    const float middle = (low + high) / 2;  // exact: 12 bits of mantissa
    const uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(to_f16(middle).bits, even) << bits;
    ASSERT_EQ(to_f16(std::nextafter(middle, 0.0f)).bits, bits);
    ASSERT_EQ(to_f16(std::nextafter(middle, INFINITY)).bits, bits + 1);
    ASSERT_EQ(to_f16(-middle).bits, even | 0x8000) << bits;
  }
}

TEST(Half, F16Overflows) {
  EXPECT_EQ(to_f16(65504.0f).bits, 0x7bff);
  EXPECT_EQ(to_f16(std::nextafter(65520.0f, 0.0f)).bits, 0x7bff);
  EXPECT_EQ(to_f16(65520.0f).bits, 0x7c00);  // the middle to 65536, which is even
  EXPECT_EQ(to_f16(-std::numeric_limits<float>::max()).bits, 0xfc00);
  EXPECT_EQ(to_f16(std::numeric_limits<float>::infinity()).bits, 0x7c00);
}

TEST(Half, Bf16RoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 0x7f80; ++bits) {
    const float low = to_f32(bf16{uint16_t(bits)});
    const float middle = std::bit_cast<float>((bits << 16) | 0x8000u);
    ASSERT_EQ(to_bf16(low).bits, bits);
    ASSERT_EQ(to_bf16(middle).bits, bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(to_bf16(std::nextafter(middle, 0.0f)).bits, bits);
    ASSERT_EQ(to_bf16(std::nextafter(middle, INFINITY)).bits, bits + 1);
  }
  EXPECT_TRUE(std::isnan(to_f32(to_bf16(std::bit_cast<float>(0x7f800001u)))));
}

}  // namespace
}  // namespace minfer
