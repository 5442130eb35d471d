#pragma once

// Products of bytes: AVX-512 VNNI. Included by kernels_avx512_vnni.cpp alone, after simd_avx512.h.

namespace minfer::cpu {
namespace {

// Register tile of the products with int8 inputs: twelve totals and twelve sums in flight, of 32
// registers; two panels share the broadcast of an input.
constexpr int kDotTokens = 6, kDotPanels = 2;

struct I32x16 {
  __m512i v;
};
inline I32x16 splat_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline F32x16 to_float(I32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
// sum + the four products of bytes in each lane; exact for any unsigned levels and signed inputs
inline I32x16 add_dot(I32x16 sum, U32x16 levels, I32x16 inputs) {
  return {_mm512_dpbusd_epi32(sum.v, levels.v, inputs.v)};
}
// sum + a * b for 0 <= a < 2^15, |b| < 2^15
inline I32x16 add_product(I32x16 sum, I32x16 a, I32x16 b) {
  return {_mm512_dpwssd_epi32(sum.v, a.v, b.v)};
}

}  // namespace
}  // namespace minfer::cpu
