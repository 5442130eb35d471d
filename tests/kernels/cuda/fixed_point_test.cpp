#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <random>

#include "kernels/cuda/decode/persistent/step_input.cuh"

// Fixed point of a decode step's inputs, against the numbers themselves in double precision.
namespace minfer::cuda {
namespace {

// The numbers that the digits of four stand for, in their order in the planes.
std::array<double, 4> numbers_of(const FixedPoint& fixed, const std::array<float, 4>& x,
                                 bool swaps) {
  uint32_t bits[4], planes[kDigits];
  for (size_t i = 0; i < 4; ++i) bits[i] = std::bit_cast<uint32_t>(x[i]);
  std::ranges::fill(planes, 0x55555555u);
  fixed.digits(planes, bits, swaps);
  std::array<double, 4> numbers{};
  for (int d = 0; d < kDigits; ++d) {
    for (size_t i = 0; i < 4; ++i) {
      numbers[i] += std::pow(256.0, d) * int8_t(planes[d] >> (8 * i) & 0xff);
    }
  }
  for (double& number : numbers) number *= double(fixed.unit) * double(kDigitUnit);
  return numbers;
}

// As many magnitudes as a float has exponents, with mantissas up to the largest.
TEST(FixedPoint, DigitsStandForTheNumberToHalfAUnitOfTheLastOne) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> part(-1, 1);
  for (int exponent = -126; exponent <= 127; ++exponent) {
    for (const uint32_t mantissa : {0u, 1u, 0x400000u, 0x7bffffu, 0x7c0000u, 0x7fffffu}) {
      const float top = std::bit_cast<float>(uint32_t(exponent + 127) << 23 | mantissa);
      SCOPED_TRACE(top);
      const FixedPoint fixed(std::bit_cast<uint32_t>(top));
      if (exponent == 127 && mantissa >= 0x7c0000u) {
        EXPECT_TRUE(std::isnan(fixed.unit));
        continue;
      }
      if (exponent >= -87) {
        EXPECT_GE(top / fixed.unit, 1 - 0x1p-6f);
      }
      EXPECT_LT(top / fixed.unit, 2 - 0x1p-5f);
      for (int round = 0; round < 20; ++round) {
        const std::array<float, 4> x = {round == 0 ? top : top * part(random),
                                        round == 0 ? -top : top * part(random) * 0x1p-12f,
                                        round == 0 ? 0.0f : top * part(random), top * part(random)};
        for (const bool swaps : {false, true}) {
          const std::array<double, 4> numbers = numbers_of(fixed, x, swaps);
          for (size_t i = 0; i < 4; ++i) {
            const size_t from = swaps && (i == 1 || i == 2) ? 3 - i : i;
            EXPECT_LE(std::abs(numbers[i] - double(x[from])), 0x1p-22 * double(fixed.unit))
                << "number " << i << " of " << x[from];
          }
        }
      }
    }
  }
}

TEST(FixedPoint, NamesWhatIsNotFinite) {
  for (const float top : {INFINITY, NAN}) {
    EXPECT_TRUE(std::isnan(FixedPoint(std::bit_cast<uint32_t>(top) & 0x7fffffffu).unit));
  }
  EXPECT_TRUE(std::isfinite(FixedPoint(0).unit));
}

}  // namespace
}  // namespace minfer::cuda
