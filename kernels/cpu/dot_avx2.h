#pragma once

// Int8 dot products: AVX2. Included by kernels_avx2.cpp alone, after simd_avx2.h.

namespace minfer::cpu {
namespace {

// Register tile of the int8 dot products, in 16 registers: a vector takes two.
constexpr int kDotRows = 2, kDotPanels = 1;

struct I32x16 {
  __m256i lo, hi;
};
inline I32x16 splat_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline F32x16 to_float(I32x16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }

// maddubs sums pairs of products in 16 bits, which may overflow for bytes times bytes. 2 * 15 * 128
// fits, so it takes the low and the high nibbles of the codes separately.
inline __m256i add_dot(__m256i sum, __m256i codes, __m256i inputs) {
  const __m256i nibble = _mm256_set1_epi8(15);
  const __m256i low = _mm256_maddubs_epi16(_mm256_and_si256(codes, nibble), inputs);
  const __m256i high =
      _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16(codes, 4), nibble), inputs);
  sum = _mm256_add_epi32(sum, _mm256_madd_epi16(low, _mm256_set1_epi16(1)));
  return _mm256_add_epi32(sum, _mm256_madd_epi16(high, _mm256_set1_epi16(16)));
}
// sum + the dot product of the four bytes in each lane; exact for unsigned codes and signed inputs
inline I32x16 add_dot(I32x16 sum, U32x16 codes, I32x16 inputs) {
  return {add_dot(sum.lo, codes.lo, inputs.lo), add_dot(sum.hi, codes.hi, inputs.hi)};
}
// sum + a * b for 0 <= a < 2^15, |b| < 2^15
inline I32x16 add_dot(I32x16 sum, I32x16 a, I32x16 b) {
  return {_mm256_add_epi32(sum.lo, _mm256_madd_epi16(a.lo, b.lo)),
          _mm256_add_epi32(sum.hi, _mm256_madd_epi16(a.hi, b.hi))};
}

}  // namespace
}  // namespace minfer::cpu
