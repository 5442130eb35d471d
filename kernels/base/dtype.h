#pragma once

#include <cstdint>
#include <iosfwd>
#include <string_view>

#include "kernels/base/error.h"
#include "kernels/base/half.h"

namespace minfer {

// How the elements of a tensor are stored. Q8_0 to MXFP4 are GGUF's blocks (quant_blocks.h);
// U8 and U4 (two a byte) are the codes of a QuantizedMatrix and mean nothing without its scales.
enum class DType {
  F32,
  F16,
  BF16,
  Q8_0,
  Q4_0,
  Q4_1,
  Q5_0,
  Q5_1,
  Q2_K,
  Q3_K,
  Q4_K,
  Q5_K,
  Q6_K,
  IQ4_NL,
  IQ4_XS,
  MXFP4,
  U8,
  U4
};

struct DTypeInfo {
  std::string_view name;
  int64_t block_elements;  // 1 for the float types
  int64_t block_bytes;
};

const DTypeInfo& info(DType dtype);
std::ostream& operator<<(std::ostream& out, DType dtype);

inline bool is_float(DType dtype) { return dtype <= DType::BF16; }

// Bytes of n elements in a row; n must be whole blocks. Throws Input where the product overflows.
int64_t bytes_of(DType dtype, int64_t n);

// Unit roundoff of a float type: half the distance from 1 to the next number.
constexpr double unit_roundoff(DType dtype) {
  return dtype == DType::F32 ? 0x1p-24 : dtype == DType::F16 ? 0x1p-11 : 0x1p-8;
}

template <typename T>
struct dtype_of;
template <>
struct dtype_of<float> {
  static constexpr DType value = DType::F32;
};
template <>
struct dtype_of<f16> {
  static constexpr DType value = DType::F16;
};
template <>
struct dtype_of<bf16> {
  static constexpr DType value = DType::BF16;
};

template <>
struct dtype_of<uint8_t> {
  static constexpr DType value = DType::U8;
};

// Calls f.operator()<T>() with the C++ type of a float dtype.
template <typename F>
decltype(auto) visit_float(DType dtype, F&& f) {
  switch (dtype) {
    case DType::F32:
      return f.template operator()<float>();
    case DType::F16:
      return f.template operator()<f16>();
    case DType::BF16:
      return f.template operator()<bf16>();
    default:
      break;
  }
  throw Error(ErrorKind::Internal, cat("visit_float: ", info(dtype).name));
}

}  // namespace minfer
