#pragma once

// Sixteen f32 lanes in two registers: AVX2, FMA and F16C. Included by kernels_avx2.cpp alone.

#include <immintrin.h>

#include <cstdint>

#include "kernels/base/half.h"

namespace minfer::cpu {
namespace {

constexpr const char* kIsaName = "avx2";
// Register tile of the f32 matmuls: tokens times panels in flight, in 16 registers.
constexpr int kTileTokens = 6, kTilePanels = 1;
constexpr int kFmaChains = 6;  // F32x16 in flight that hide the latency of multiply-adds

struct F32x16 {
  __m256 lo, hi;
};

// Mask of lanes i < n of the lower (or, with n - 8, the upper) half.
inline __m256i first_lanes(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(int(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

inline F32x16 splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline F32x16 load(const f16* p) {
  const auto* halves = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}
inline __m256 bf16_to_f32(__m128i bits) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline F32x16 load(const bf16* p) {
  const auto* halves = reinterpret_cast<const __m128i*>(p);
  return {bf16_to_f32(_mm_loadu_si128(halves)), bf16_to_f32(_mm_loadu_si128(halves + 1))};
}
inline F32x16 load(const int8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}
// Loads codes of a quantized cache as code - kKvZeroCode.
inline __m256 codes_to_f32(__m128i codes) {  // of the lower eight bytes
  return _mm256_sub_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(codes)),
                       _mm256_set1_ps(float(kKvZeroCode)));
}
inline F32x16 load(const uint8_t* p) {
  const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {codes_to_f32(codes), codes_to_f32(_mm_srli_si128(codes, 8))};
}
inline __m256 masked_load(const float* p, __m256i lanes, __m256 fill) {
  return _mm256_blendv_ps(fill, _mm256_maskload_ps(p, lanes), _mm256_castsi256_ps(lanes));
}
// Loads the first n lanes; the others are `fill`.
inline F32x16 load_first(const float* p, int64_t n, float fill) {
  const __m256 other = _mm256_set1_ps(fill);
  return {masked_load(p, first_lanes(n), other), masked_load(p + 8, first_lanes(n - 8), other)};
}
inline void store(float* p, F32x16 x) {
  _mm256_storeu_ps(p, x.lo);
  _mm256_storeu_ps(p + 8, x.hi);
}
inline void store(f16* p, F32x16 x) {
  auto* halves = reinterpret_cast<__m128i*>(p);
  _mm_storeu_si128(halves, _mm256_cvtps_ph(x.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  _mm_storeu_si128(halves + 1,
                   _mm256_cvtps_ph(x.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
// Converts sixteen whole numbers to 16 bits, saturated.
inline __m256i to_i16(F32x16 x) {
  return _mm256_permute4x64_epi64(
      _mm256_packs_epi32(_mm256_cvtps_epi32(x.lo), _mm256_cvtps_epi32(x.hi)), 0xd8);
}
// Stores whole numbers in [0, 255].
inline void store(uint8_t* p, F32x16 x) {
  const __m256i words = to_i16(x);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(p),
      _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}
inline void store_first(float* p, int64_t n, F32x16 x) {
  _mm256_maskstore_ps(p, first_lanes(n), x.lo);
  _mm256_maskstore_ps(p + 8, first_lanes(n - 8), x.hi);
}

inline F32x16 operator+(F32x16 a, F32x16 b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
inline F32x16 operator-(F32x16 a, F32x16 b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
inline F32x16 operator*(F32x16 a, F32x16 b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
inline F32x16 operator/(F32x16 a, F32x16 b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
inline F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline F32x16 round(F32x16 a) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, kNearest), _mm256_round_ps(a.hi, kNearest)};
}
// If a lane of b is NaN, so is that of the result.
inline F32x16 max(F32x16 a, F32x16 b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
inline F32x16 min(F32x16 a, F32x16 b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
inline F32x16 abs(F32x16 a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
inline F32x16 with_sign_of(F32x16 magnitude, F32x16 sign) {
  const __m256 bit = _mm256_set1_ps(-0.0f);
  return {_mm256_or_ps(magnitude.lo, _mm256_and_ps(sign.lo, bit)),
          _mm256_or_ps(magnitude.hi, _mm256_and_ps(sign.hi, bit))};
}
// a < b ? x : y
inline F32x16 where_less(F32x16 a, F32x16 b, F32x16 x, F32x16 y) {
  return {_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
// In two steps, because 2^128 is not a finite float.
inline __m256 times_power_of_2(__m256 a, __m256 n) {
  const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
  const __m256i one = _mm256_set1_epi32(127), rest = _mm256_sub_epi32(whole, half);
  const auto power = [one](__m256i k) __attribute__((always_inline)) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(k, one), 23));
  };
  return _mm256_mul_ps(_mm256_mul_ps(a, power(half)), power(rest));
}
// a 2^n for whole numbers n in [-126, 128]
inline F32x16 times_power_of_2(F32x16 a, F32x16 n) {
  return {times_power_of_2(a.lo, n.lo), times_power_of_2(a.hi, n.hi)};
}

// Lanes are added and compared by halves: 8 and 8, 4 and 4, ...
inline __m256 upper_half(F32x16 a) { return a.hi; }
inline __m256 lower_half(F32x16 a) { return a.lo; }

// Loads 16 floats c s c s ... as 8 c and 8 s
inline void load_pairs(const float* p, __m256& first, __m256& second) {
  const __m256 a = _mm256_loadu_ps(p), b = _mm256_loadu_ps(p + 8);
  const __m256i order = _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7);  // pairs of lanes across halves
  first = _mm256_permutevar8x32_ps(_mm256_shuffle_ps(a, b, 0x88), order);
  second = _mm256_permutevar8x32_ps(_mm256_shuffle_ps(a, b, 0xdd), order);
}
// Loads 32 floats c s c s ... as 16 c and 16 s
inline void load_pairs(const float* p, F32x16& first, F32x16& second) {
  load_pairs(p, first.lo, second.lo);
  load_pairs(p + 16, first.hi, second.hi);
}

struct U32x16 {
  __m256i lo, hi;
};
inline U32x16 load_words(const uint32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
inline U32x16 operator+(U32x16 a, U32x16 b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
inline void store_words(uint32_t* p, U32x16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), x.hi);
}

// Quantized codes in words: quantized_layout.h.
inline U32x16 load_codes(const uint8_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
inline void store_codes(uint8_t* p, U32x16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), x.hi);
}
inline U32x16 operator|(U32x16 a, U32x16 b) {
  return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
inline U32x16 mask_bytes(U32x16 a, int mask) {
  const __m256i bytes = _mm256_set1_epi8(char(mask));
  return {_mm256_and_si256(a.lo, bytes), _mm256_and_si256(a.hi, bytes)};
}
inline U32x16 shift_right(U32x16 a, int n) {
  const __m128i count = _mm_cvtsi32_si128(n);
  return {_mm256_srl_epi32(a.lo, count), _mm256_srl_epi32(a.hi, count)};
}
// To the right, or to the left for negative numbers.
template <int kShift>
inline U32x16 shifted(U32x16 a) {
  if constexpr (kShift == 0) return a;
  if constexpr (kShift < 0) {
    return {_mm256_slli_epi32(a.lo, -kShift), _mm256_slli_epi32(a.hi, -kShift)};
  }
  if constexpr (kShift > 0) {
    return {_mm256_srli_epi32(a.lo, kShift), _mm256_srli_epi32(a.hi, kShift)};
  }
}
inline U32x16 low_nibbles(U32x16 a) {
  const __m256i nibble = _mm256_set1_epi8(15);
  return {_mm256_and_si256(a.lo, nibble), _mm256_and_si256(a.hi, nibble)};
}
inline U32x16 high_nibbles(U32x16 a) {
  return low_nibbles({_mm256_srli_epi32(a.lo, 4), _mm256_srli_epi32(a.hi, 4)});
}

// The values of codes: code - zero.
template <CodeForm kCodes>
struct CodeValues {
  explicit CodeValues(const PackedCodes& w) : zeros(_mm256_set1_ps(float(w.zero_code()))) {}
  // The codes from bit kShift of each word on.
  template <int kShift>
  F32x16 at(U32x16 words) const {
    return {value<kShift>(words.lo), value<kShift>(words.hi)};
  }
  template <int kShift>
  __m256 value(__m256i words) const {
    const __m256i mask = _mm256_set1_epi32((1 << bits_of(kCodes)) - 1);
    const __m256i code = _mm256_and_si256(_mm256_srli_epi32(words, kShift), mask);
    return _mm256_sub_ps(_mm256_cvtepi32_ps(code), zeros);
  }
  __m256 zeros;
};

// Those of a table: a permutation for each half of it, of which bit 3 of the code chooses one.
template <>
struct CodeValues<CodeForm::Table> {
  explicit CodeValues(const PackedCodes& w)
      : first(eight_entries(w.table)), second(eight_entries(w.table + 8)) {}
  template <int kShift>
  F32x16 at(U32x16 words) const {
    return {value<kShift>(words.lo), value<kShift>(words.hi)};
  }
  template <int kShift>
  __m256 value(__m256i words) const {
    const __m256i code = _mm256_srli_epi32(words, kShift);  // a permutation reads three bits
    const __m256 chosen = _mm256_castsi256_ps(_mm256_slli_epi32(words, 28 - kShift));
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(first, code),
                            _mm256_permutevar8x32_ps(second, code), chosen);
  }
  static __m256 eight_entries(const int8_t* p) {
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  __m256 first, second;
};

// Codes of four bits as bytes; those of a table: entry + 128.
template <CodeForm kCodes>
struct ByteCodes {
  explicit ByteCodes(const PackedCodes& w) {
    if constexpr (kCodes == CodeForm::Table) {
      const __m128i entries = _mm_loadu_si128(reinterpret_cast<const __m128i*>(w.table));
      table = _mm256_broadcastsi128_si256(_mm_xor_si128(entries, _mm_set1_epi8(-128)));
    }
  }
  U32x16 low(U32x16 words) const { return look_up(low_nibbles(words)); }
  U32x16 high(U32x16 words) const { return look_up(high_nibbles(words)); }
  U32x16 look_up(U32x16 codes) const {
    if constexpr (kCodes != CodeForm::Table) return codes;
    return {_mm256_shuffle_epi8(table, codes.lo), _mm256_shuffle_epi8(table, codes.hi)};
  }
  __m256i table = {};
};

// For quantizing inputs. The bits of magnitudes have the order of the values, with NaN above all.
inline U32x16 magnitude_bits(F32x16 a) {
  const F32x16 magnitude = abs(a);
  return {_mm256_castps_si256(magnitude.lo), _mm256_castps_si256(magnitude.hi)};
}
inline U32x16 max(U32x16 a, U32x16 b) {
  return {_mm256_max_epu32(a.lo, b.lo), _mm256_max_epu32(a.hi, b.hi)};
}
inline uint32_t max_lane(U32x16 a) {
  const __m256i by8 = _mm256_max_epu32(a.lo, a.hi);
  __m128i by4 = _mm_max_epu32(_mm256_castsi256_si128(by8), _mm256_extracti128_si256(by8, 1));
  by4 = _mm_max_epu32(by4, _mm_shuffle_epi32(by4, 0x4e));
  return uint32_t(_mm_cvtsi128_si32(_mm_max_epu32(by4, _mm_shuffle_epi32(by4, 0xb1))));
}
// Stores whole numbers in [-128, 127].
inline void store(int8_t* p, F32x16 a) {
  const __m256i words = to_i16(a);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(p),
      _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

}  // namespace
}  // namespace minfer::cpu
