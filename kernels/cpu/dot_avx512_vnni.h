#pragma once

// Int8 dot products: AVX-512 VNNI. Included by kernels_avx512_vnni.cpp alone, after simd_avx512.h.

namespace minfer::cpu {
namespace {

// Register tile of the int8 dot products: twelve totals and twelve sums in flight, in 32 registers;
// two panels use one broadcast of an input.
constexpr int kDotRows = 6, kDotPanels = 2;

struct I32x16 {
  __m512i v;
};
inline I32x16 splat_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline F32x16 to_float(I32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
// sum + the dot product of the four bytes in each lane; exact for unsigned codes and signed inputs
inline I32x16 add_dot(I32x16 sum, U32x16 codes, I32x16 inputs) {
  return {_mm512_dpbusd_epi32(sum.v, codes.v, inputs.v)};
}
// sum + a * b for 0 <= a < 2^15, |b| < 2^15
inline I32x16 add_dot(I32x16 sum, I32x16 a, I32x16 b) {
  return {_mm512_dpwssd_epi32(sum.v, a.v, b.v)};
}

// For inputs in planes.
inline I32x16 to_int(F32x16 a) { return {_mm512_cvtps_epi32(a.v)}; }
// The lowest bytes of sixteen numbers, then of sixteen more.
struct I8x32 {
  __m256i v;
};
inline I8x32 low_bytes(I32x16 a, I32x16 b) {
  return {_mm256_set_m128i(_mm512_cvtepi32_epi8(b.v), _mm512_cvtepi32_epi8(a.v))};
}
inline void store(int8_t* p, I8x32 a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.v); }
// (a - its lowest byte as a signed number) / 256
inline I32x16 without_low_byte(I32x16 a) {
  return {_mm512_srai_epi32(_mm512_add_epi32(a.v, _mm512_set1_epi32(128)), 8)};
}
// the sum of the first sixteen codes, and of the others
inline void sum_halves(int* sums, I8x32 a) {
  __m256i fours = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), a.v);
  fours = _mm256_add_epi32(fours, _mm256_shuffle_epi32(fours, 0b01'00'11'10));
  fours = _mm256_add_epi32(fours, _mm256_shuffle_epi32(fours, 0b10'11'00'01));
  sums[0] = _mm256_extract_epi32(fours, 0);
  sums[1] = _mm256_extract_epi32(fours, 4);
}

}  // namespace
}  // namespace minfer::cpu
