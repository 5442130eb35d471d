#pragma once

#include <bit>
#include <cstdint>

namespace minfer {

// IEEE binary16 and bfloat16 as stored. Conversions are portable integer code, exact or rounded to
// nearest even; the vector paths of kernels/cpu use the instructions and give the same bits.
struct f16 {
  uint16_t bits;
};
struct bf16 {
  uint16_t bits;
};

inline float to_f32(float x) { return x; }

inline float to_f32(bf16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }

inline float to_f32(f16 x) {
  const uint32_t sign = uint32_t{x.bits & 0x8000u} << 16;
  const uint32_t exponent = (x.bits >> 10) & 0x1fu;
  const uint32_t mantissa = x.bits & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24 is exact in f32
    return std::bit_cast<float>(std::bit_cast<uint32_t>(float(mantissa) * 0x1p-24f) | sign);
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

inline bf16 to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {uint16_t((bits >> 16) | 0x40u)};  // quiet NaN
  return {uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

inline f16 to_f16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint16_t sign = uint16_t((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {  // NaN: quiet, the upper payload kept
    return {uint16_t(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu))};
  }
  if (magnitude >= 0x477ff000u) return {uint16_t(sign | 0x7c00u)};  // rounds to 65536 or more
  if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 rounds to a multiple of 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return {uint16_t(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u))};
  }
  return {uint16_t(sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13))};
}

template <typename T>
T from_f32(float x);
template <>
inline float from_f32<float>(float x) {
  return x;
}
template <>
inline f16 from_f32<f16>(float x) {
  return to_f16(x);
}
template <>
inline bf16 from_f32<bf16>(float x) {
  return to_bf16(x);
}

}  // namespace minfer
