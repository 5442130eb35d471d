#pragma once

// Sixteen f32 lanes in one register: AVX-512 F, BW, DQ and VL. Included by kernels_avx512.cpp
// alone.

#include <immintrin.h>

#include <cstdint>

#include "kernels/base/half.h"

namespace minfer::cpu {
namespace {

constexpr const char* kIsaName = "avx512";
// Register tile of the f32 matmuls: tokens times panels in flight, in 32 registers.
constexpr int kTileTokens = 6, kTilePanels = 4;
constexpr int kFmaChains = 12;  // F32x16 in flight that hide the latency of multiply-adds

struct F32x16 {
  __m512 v;
};

inline __mmask16 first_lanes(int64_t n) { return __mmask16((1u << n) - 1); }  // n <= 16

inline F32x16 splat(float x) { return {_mm512_set1_ps(x)}; }
inline F32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline F32x16 load(const f16* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline F32x16 load(const bf16* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
inline F32x16 load(const int8_t* p) {
  return {_mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
// Loads codes of a quantized cache as code - kKvZeroCode.
inline F32x16 load(const uint8_t* p) {
  const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm512_sub_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(codes)),
                        _mm512_set1_ps(float(kKvZeroCode)))};
}
// Loads the first n lanes; the others are `fill`.
inline F32x16 load_first(const float* p, int64_t n, float fill) {
  return {_mm512_mask_loadu_ps(_mm512_set1_ps(fill), first_lanes(n), p)};
}
inline void store(float* p, F32x16 x) { _mm512_storeu_ps(p, x.v); }
inline void store(f16* p, F32x16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
// Stores whole numbers in [0, 255].
inline void store(uint8_t* p, F32x16 x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtusepi32_epi8(_mm512_cvtps_epi32(x.v)));
}
inline void store_first(float* p, int64_t n, F32x16 x) {
  _mm512_mask_storeu_ps(p, first_lanes(n), x.v);
}

inline F32x16 operator+(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F32x16 operator-(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F32x16 operator*(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F32x16 operator/(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F32x16 round(F32x16 a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// If a lane of b is NaN, so is that of the result.
inline F32x16 max(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F32x16 min(F32x16 a, F32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F32x16 abs(F32x16 a) { return {_mm512_abs_ps(a.v)}; }
inline F32x16 with_sign_of(F32x16 magnitude, F32x16 sign) {
  return {_mm512_or_ps(magnitude.v, _mm512_and_ps(sign.v, _mm512_set1_ps(-0.0f)))};
}
// a < b ? x : y
inline F32x16 where_less(F32x16 a, F32x16 b, F32x16 x, F32x16 y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}
// a 2^n for whole numbers n in [-126, 128]
inline F32x16 times_power_of_2(F32x16 a, F32x16 n) { return {_mm512_scalef_ps(a.v, n.v)}; }

// Lanes are added and compared by halves: 8 and 8, 4 and 4, ...
inline __m256 upper_half(F32x16 a) { return _mm512_extractf32x8_ps(a.v, 1); }
inline __m256 lower_half(F32x16 a) { return _mm512_castps512_ps256(a.v); }

// Loads 32 floats c s c s ... as 16 c and 16 s
inline void load_pairs(const float* p, F32x16& first, F32x16& second) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  const __m512 a = _mm512_loadu_ps(p), b = _mm512_loadu_ps(p + 16);
  first = {_mm512_permutex2var_ps(a, even, b)};
  second = {_mm512_permutex2var_ps(a, odd, b)};
}

struct U32x16 {
  __m512i v;
};
inline U32x16 load_words(const uint32_t* p) { return {_mm512_loadu_si512(p)}; }
inline U32x16 operator+(U32x16 a, U32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline void store_words(uint32_t* p, U32x16 x) { _mm512_storeu_si512(p, x.v); }

// Quantized codes in words: quantized_layout.h.
inline U32x16 load_codes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline void store_codes(uint8_t* p, U32x16 x) { _mm512_storeu_si512(p, x.v); }
inline U32x16 operator|(U32x16 a, U32x16 b) { return {_mm512_or_si512(a.v, b.v)}; }
inline U32x16 mask_bytes(U32x16 a, int mask) {
  return {_mm512_and_si512(a.v, _mm512_set1_epi8(char(mask)))};
}
inline U32x16 shift_right(U32x16 a, int n) { return {_mm512_srl_epi32(a.v, _mm_cvtsi32_si128(n))}; }
// To the right, or to the left for negative numbers.
template <int kShift>
inline U32x16 shifted(U32x16 a) {
  if constexpr (kShift == 0) return a;
  if constexpr (kShift < 0) return {_mm512_slli_epi32(a.v, -kShift)};
  if constexpr (kShift > 0) return {_mm512_srli_epi32(a.v, kShift)};
}
inline U32x16 low_nibbles(U32x16 a) {
  return {_mm512_and_si512(a.v, _mm512_set1_epi32(0x0f0f0f0f))};
}
inline U32x16 high_nibbles(U32x16 a) {
  return {_mm512_and_si512(_mm512_srli_epi32(a.v, 4), _mm512_set1_epi32(0x0f0f0f0f))};
}

// The values of codes of four bits: those of a table of sixteen.
template <CodeForm kCodes>
struct CodeValues {
  explicit CodeValues(const PackedCodes& w)
      : table(kCodes == CodeForm::Table ? _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(
                                              reinterpret_cast<const __m128i*>(w.table))))
                                        : _mm512_sub_ps(_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9,
                                                                       10, 11, 12, 13, 14, 15),
                                                        _mm512_set1_ps(float(w.zero_code())))) {}
  // The codes from bit kShift of each word on.
  template <int kShift>
  F32x16 at(U32x16 words) const {  // the permutation reads the lowest four bits only
    return {
        _mm512_permutexvar_ps(kShift == 0 ? words.v : _mm512_srli_epi32(words.v, kShift), table)};
  }
  __m512 table;
};

// Those of eight bits: code - zero.
template <>
struct CodeValues<CodeForm::U8> {
  explicit CodeValues(const PackedCodes& w) : zeros(_mm512_set1_ps(float(w.zero_code()))) {}
  template <int kShift>
  F32x16 at(U32x16 words) const {
    const __m512i lowest = _mm512_setr4_epi32(int(0xffffff00), int(0xffffff04), int(0xffffff08),
                                              int(0xffffff0c));  // of each word, with zeros above
    const __m512i code =
        _mm512_shuffle_epi8(words.v, _mm512_add_epi32(lowest, _mm512_set1_epi32(kShift / 8)));
    return {_mm512_sub_ps(_mm512_cvtepi32_ps(code), zeros)};
  }
  __m512 zeros;
};

// Codes of four bits as bytes; those of a table: entry + 128.
template <CodeForm kCodes>
struct ByteCodes {
  explicit ByteCodes(const PackedCodes& w) {
    if constexpr (kCodes == CodeForm::Table) {
      const __m128i entries = _mm_loadu_si128(reinterpret_cast<const __m128i*>(w.table));
      table = _mm512_broadcast_i32x4(_mm_xor_si128(entries, _mm_set1_epi8(-128)));
    }
  }
  U32x16 low(U32x16 words) const { return look_up(low_nibbles(words)); }
  U32x16 high(U32x16 words) const { return look_up(high_nibbles(words)); }
  U32x16 look_up(U32x16 codes) const {
    if constexpr (kCodes == CodeForm::Table) return {_mm512_shuffle_epi8(table, codes.v)};
    return codes;
  }
  __m512i table = {};
};

// For quantizing inputs. The bits of magnitudes have the order of the values, with NaN above all.
inline U32x16 magnitude_bits(F32x16 a) { return {_mm512_castps_si512(abs(a).v)}; }
inline U32x16 max(U32x16 a, U32x16 b) { return {_mm512_max_epu32(a.v, b.v)}; }
inline uint32_t max_lane(U32x16 a) { return _mm512_reduce_max_epu32(a.v); }
// Stores whole numbers in [-128, 127].
inline void store(int8_t* p, F32x16 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a.v)));
}

}  // namespace
}  // namespace minfer::cpu
