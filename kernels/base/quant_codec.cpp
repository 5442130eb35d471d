#include "kernels/base/quant_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/base/quant_blocks.h"

namespace minfer {
namespace {

// unpack() writes a block: unsigned codes, and scales whose numbers are 1 where a block has a
// single group.

void unpack(const BlockQ8_0& b, uint8_t* codes, BlockScales& to) {
  to.factor = to_f32(b.d);
  for (int i = 0; i < 32; ++i) codes[i] = uint8_t(b.q[i] + 128);
}

void unpack_nibbles(const uint8_t* q, uint8_t* codes) {  // 16 bytes
  for (int i = 0; i < 16; ++i) {
    codes[i] = q[i] & 15;
    codes[i + 16] = q[i] >> 4;
  }
}

void unpack(const BlockQ4_0& b, uint8_t* codes, BlockScales& to) {
  to.factor = to_f32(b.d);
  unpack_nibbles(b.q, codes);
}

void unpack(const BlockQ4_1& b, uint8_t* codes, BlockScales& to) {
  to.factor = to_f32(b.d);
  to.min_factor = to_f32(b.m);
  unpack_nibbles(b.q, codes);
}

void add_fifth_bits(const uint8_t (&high)[4], uint8_t* codes) {
  for (int i = 0; i < 32; ++i) codes[i] |= uint8_t(((high[i / 8] >> (i % 8)) & 1) << 4);
}

void unpack(const BlockQ5_0& b, uint8_t* codes, BlockScales& to) {
  to.factor = to_f32(b.d);
  unpack_nibbles(b.q, codes);
  add_fifth_bits(b.high, codes);
}

void unpack(const BlockQ5_1& b, uint8_t* codes, BlockScales& to) {
  to.factor = to_f32(b.d);
  to.min_factor = to_f32(b.m);
  unpack_nibbles(b.q, codes);
  add_fifth_bits(b.high, codes);
}

struct ScaleMin {
  int scale, min;
};

// Unpacks the 6-bit scale and min of sub-block s from the 12 packed bytes of Q4_K and Q5_K. For
// s < 4, the scale is the low six bits of byte s and the min those of byte s + 4. For s >= 4, byte
// s + 4 holds the low four bits of the scale (low nibble) and of the min (high nibble); their upper
// two bits are the top two bits of bytes s - 4 and s.
ScaleMin scale_min(const uint8_t (&p)[12], int s) {
  if (s < 4) return {p[s] & 63, p[s + 4] & 63};
  return {(p[s + 4] & 15) | ((p[s - 4] >> 6) << 4), (p[s + 4] >> 4) | ((p[s] >> 6) << 4)};
}

// Unpacks what Q4_K and Q5_K share: scales and mins, each an f16 of the block times 6 bits of the
// sub-block, and the low four bits of the codes.
template <typename Block>
void unpack_k(const Block& b, uint8_t* codes, BlockScales& to) {
  to.factor = to_f32(b.d);
  to.min_factor = -to_f32(b.dmin);
  for (int s = 0; s < 8; ++s) {
    const ScaleMin k = scale_min(b.scales, s);
    to.scales[s] = int8_t(k.scale);
    to.mins[s] = int8_t(k.min);
    const uint8_t* q = b.q + 32 * (s / 2);
    for (int i = 0; i < 32; ++i) codes[32 * s + i] = (q[i] >> (4 * (s % 2))) & 15;
  }
}

void unpack(const BlockQ4_K& b, uint8_t* codes, BlockScales& to) { unpack_k(b, codes, to); }

void unpack(const BlockQ5_K& b, uint8_t* codes, BlockScales& to) {
  unpack_k(b, codes, to);
  for (int s = 0; s < 8; ++s) {
    for (int i = 0; i < 32; ++i) codes[32 * s + i] |= uint8_t(((b.high[i] >> s) & 1) << 4);
  }
}

// Each half of the block has 128 elements: 64 bytes hold the low four bits of their codes, 32 bytes
// the upper two bits, and 8 bytes the scales. Quarters 0 and 1 of a half take the low nibbles of
// bytes 0..31 and 32..63, quarters 2 and 3 their high nibbles; quarter j takes bits 2j and 2j + 1
// of the 32 bytes.
void unpack(const BlockQ6_K& b, uint8_t* codes, BlockScales& to) {
  to.factor = to_f32(b.d);
  std::copy_n(b.scales, 16, to.scales);
  for (int half = 0; half < 2; ++half) {
    for (int j = 0; j < 4; ++j) {
      for (int i = 0; i < 32; ++i) {
        const int low = (b.low[64 * half + 32 * (j % 2) + i] >> (4 * (j / 2))) & 15;
        const int high = (b.high[32 * half + i] >> (2 * j)) & 3;
        codes[128 * half + 32 * j + i] = uint8_t(low | (high << 4));
      }
    }
  }
}

// Calls f(element of the block, code) for the low two bits of Q2_K and Q3_K. A sub-block has 16
// elements; two of them lie in the same bits of 32 bytes.
template <typename F>
void for_each_pair_of_bits(const uint8_t (&q)[64], F f) {
  for (int half = 0; half < 2; ++half) {
    for (int j = 0; j < 4; ++j) {
      for (int i = 0; i < 32; ++i) f(128 * half + 32 * j + i, (q[32 * half + i] >> (2 * j)) & 3);
    }
  }
}

void unpack(const BlockQ2_K& b, uint8_t* codes, BlockScales& to) {
  to.factor = to_f32(b.d);
  to.min_factor = -to_f32(b.dmin);
  for (int s = 0; s < 16; ++s) {
    to.scales[s] = int8_t(b.scales[s] & 15);
    to.mins[s] = int8_t(b.scales[s] >> 4);
  }
  for_each_pair_of_bits(b.q, [&](int i, int code) { codes[i] = uint8_t(code); });
}

// Byte s % 8 holds the low four bits of scale s, in the low nibble for s < 8; byte 8 + s % 4 its
// upper two, from bit 2 (s / 4) on.
void unpack(const BlockQ3_K& b, uint8_t* codes, BlockScales& to) {
  to.factor = to_f32(b.d);
  for (int s = 0; s < 16; ++s) {
    const int low = (b.scales[s % 8] >> (4 * (s / 8))) & 15;
    const int high = (b.scales[8 + s % 4] >> (2 * (s / 4))) & 3;
    to.scales[s] = int8_t((low | high << 4) - 32);
  }
  for_each_pair_of_bits(b.q, [&](int i, int code) {
    const int third = (b.high[i % 32] >> (i / 32)) & 1;
    codes[i] = uint8_t(code | third << 2);
  });
}

constexpr int8_t kIq4Table[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                  1,    13,   25,  38,  53,  69,  89,  113};
constexpr int8_t kE2m1Table[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

void unpack(const BlockIQ4_NL& b, uint8_t* codes, BlockScales& to) {
  to.factor = to_f32(b.d);
  unpack_nibbles(b.q, codes);
}

void unpack(const BlockIQ4_XS& b, uint8_t* codes, BlockScales& to) {
  to.factor = to_f32(b.d);
  for (int s = 0; s < 8; ++s) {
    const int low = (b.scales_low[s / 2] >> (4 * (s % 2))) & 15;
    const int high = (b.scales_high >> (2 * s)) & 3;
    to.scales[s] = int8_t((low | high << 4) - 32);
    unpack_nibbles(b.q + 16 * s, codes + 32 * s);
  }
}

void unpack(const BlockMXFP4& b, uint8_t* codes, BlockScales& to) {
  to.factor = std::ldexp(1.0f, b.e - 128);
  unpack_nibbles(b.q, codes);
}

template <typename Block>
void unpack_block(uint8_t* codes, BlockScales& scales, const void* in) {
  Block block;
  std::memcpy(&block, in, sizeof block);
  scales.min_factor = 0;
  scales.scales[0] = scales.mins[0] = 1;
  unpack(block, codes, scales);
}

bool is_finite(f16 x) { return (x.bits & 0x7c00) != 0x7c00; }

template <typename Block>
bool has_finite_scales(const void* in, int64_t n) {
  const char* bytes = static_cast<const char*>(in);
  bool finite = true;
  for (int64_t i = 0; i < n; i += Block::kElements, bytes += sizeof(Block)) {
    Block block;
    std::memcpy(&block, bytes, sizeof block);
    // An exponent alone: 12 times the largest scales is infinite.
    if constexpr (requires { block.e; }) finite &= block.e <= 252;
    if constexpr (requires { block.d; }) finite &= is_finite(block.d);
    if constexpr (requires { block.m; }) finite &= is_finite(block.m);
    if constexpr (requires { block.dmin; }) finite &= is_finite(block.dmin);
  }
  return finite;
}

// Calls f.operator()<Block>() with the block struct of a Q type.
template <typename F>
decltype(auto) visit_block(DType dtype, F&& f) {
  switch (dtype) {
    case DType::Q8_0:
      return f.template operator()<BlockQ8_0>();
    case DType::Q4_0:
      return f.template operator()<BlockQ4_0>();
    case DType::Q4_1:
      return f.template operator()<BlockQ4_1>();
    case DType::Q5_0:
      return f.template operator()<BlockQ5_0>();
    case DType::Q5_1:
      return f.template operator()<BlockQ5_1>();
    case DType::Q2_K:
      return f.template operator()<BlockQ2_K>();
    case DType::Q3_K:
      return f.template operator()<BlockQ3_K>();
    case DType::Q4_K:
      return f.template operator()<BlockQ4_K>();
    case DType::Q5_K:
      return f.template operator()<BlockQ5_K>();
    case DType::Q6_K:
      return f.template operator()<BlockQ6_K>();
    case DType::IQ4_NL:
      return f.template operator()<BlockIQ4_NL>();
    case DType::IQ4_XS:
      return f.template operator()<BlockIQ4_XS>();
    case DType::MXFP4:
      return f.template operator()<BlockMXFP4>();
    default:
      break;
  }
  throw Error(ErrorKind::Internal, cat("blocks of ", dtype));
}

template <typename T>
void convert_floats(float* out, const void* in, int64_t n) {
  const char* bytes = static_cast<const char*>(in);
  for (int64_t i = 0; i < n; ++i) {
    T x;
    std::memcpy(&x, bytes + i * int64_t{sizeof x}, sizeof x);
    out[i] = to_f32(x);
  }
}

// 1 / d, or 0 for a block of zeros.
float inverse(float d) { return d == 0 ? 0 : 1 / d; }

void pack(BlockQ8_0& b, const float* in) {
  float largest = 0;
  for (int i = 0; i < 32; ++i) largest = std::max(largest, std::abs(in[i]));
  const float d = largest / 127, inverse_d = inverse(d);
  b.d = to_f16(d);
  for (int i = 0; i < 32; ++i) b.q[i] = int8_t(std::round(in[i] * inverse_d));
}

void pack(BlockQ4_0& b, const float* in) {
  float largest = 0;  // the element of largest magnitude, with its sign
  for (int i = 0; i < 32; ++i) {
    if (std::abs(in[i]) > std::abs(largest)) largest = in[i];
  }
  const float d = largest / -8, inverse_d = inverse(d);
  b.d = to_f16(d);
  const auto code = [&](float x) { return std::min(15, int(x * inverse_d + 8.5f)); };
  for (int i = 0; i < 16; ++i) b.q[i] = uint8_t(code(in[i]) | code(in[i + 16]) << 4);
}

template <typename Block>
void pack_blocks(void* out, const float* in, int64_t n) {
  MINFER_CHECK(n % Block::kElements == 0, n, " elements are no whole blocks");
  char* bytes = static_cast<char*>(out);
  for (int64_t i = 0; i < n; i += Block::kElements, bytes += sizeof(Block)) {
    Block block;
    pack(block, in + i);
    std::memcpy(bytes, &block, sizeof block);
  }
}

}  // namespace

std::span<const int8_t, 16> entries_of(CodeTable table) {
  MINFER_CHECK(table != CodeTable::None, "entries of no table");
  return table == CodeTable::Iq4 ? kIq4Table : kE2m1Table;
}

void encode_row(void* out, const float* in, DType dtype, int64_t n) {
  if (dtype == DType::Q8_0) return pack_blocks<BlockQ8_0>(out, in, n);
  if (dtype == DType::Q4_0) return pack_blocks<BlockQ4_0>(out, in, n);
  visit_float(dtype, [&]<typename T>() {
    T* const to = static_cast<T*>(out);
    for (int64_t i = 0; i < n; ++i) to[i] = from_f32<T>(in[i]);
  });
}

GroupFormat group_format(DType dtype) {
  const auto one_scale = [](int bits, bool has_mins) {
    return GroupFormat{.bits = bits, .group = 32, .has_mins = has_mins, .scales = DType::F16};
  };
  const auto products = [](int bits, int64_t group, bool has_mins) {
    return GroupFormat{
        .bits = bits, .group = group, .has_mins = has_mins, .scales = DType::F32, .products = true};
  };
  const auto with_table = [](GroupFormat format, CodeTable table) {
    format.table = table;
    return format;
  };
  switch (dtype) {
    case DType::Q4_0:
      return one_scale(4, false);
    case DType::Q4_1:
      return one_scale(4, true);
    case DType::Q5_0:
      return one_scale(5, false);
    case DType::Q5_1:
      return one_scale(5, true);
    case DType::Q8_0:
      return one_scale(8, false);
    case DType::Q2_K:
      return products(2, 16, true);
    case DType::Q3_K:
      return products(3, 16, false);
    case DType::Q4_K:
      return products(4, 32, true);
    case DType::Q5_K:
      return products(5, 32, true);
    case DType::Q6_K:
      return products(6, 16, false);
    case DType::IQ4_NL:
      return with_table(one_scale(4, false), CodeTable::Iq4);
    case DType::IQ4_XS:
      return with_table(products(4, 32, false), CodeTable::Iq4);
    case DType::MXFP4:
      return {4, 32, false, DType::F32, CodeTable::E2m1};
    default:
      break;
  }
  throw Error(ErrorKind::Internal, cat("group_format: ", dtype));
}

GroupFormat widened(GroupFormat format) {
  format.bits = format.bits <= 4 ? 4 : 8;
  format.products = false;
  return format;
}

int64_t scale_bytes(const GroupFormat& format, int64_t n) {
  const int64_t with_mins = format.has_mins ? 2 : 1, n_groups = n / format.group;
  return with_mins * (format.products ? n_groups + bytes_of(DType::F16, n / kFactorColumns)
                                      : bytes_of(format.scales, n_groups));
}

void unpack_block(uint8_t* codes, BlockScales& scales, const void* block, DType dtype) {
  visit_block(dtype, [&]<typename Block>() { return unpack_block<Block>(codes, scales, block); });
}

void unpack_groups(uint8_t* codes, float* scales, float* mins, const void* in, DType dtype,
                   int64_t n) {
  const DTypeInfo& type = info(dtype);
  const GroupFormat format = group_format(dtype);
  MINFER_CHECK(n % type.block_elements == 0, n, " elements of ", dtype);
  const char* block = static_cast<const char*>(in);
  BlockScales of;
  for (int64_t i = 0; i < n; i += type.block_elements, block += type.block_bytes) {
    unpack_block(codes + i, of, block, dtype);
    for (int64_t g = 0; g < type.block_elements / format.group; ++g) {
      *scales++ = of.factor * float(of.scales[g]);
      if (format.has_mins) *mins++ = of.min_factor * float(of.mins[g]);
    }
  }
}

bool has_finite_scales(const void* in, DType dtype, int64_t n) {
  MINFER_CHECK(n % info(dtype).block_elements == 0, n, " elements of ", dtype);
  return visit_block(dtype, [&]<typename Block>() { return has_finite_scales<Block>(in, n); });
}

void dequantize_row(float* out, const void* in, DType dtype, int64_t n) {
  switch (dtype) {
    case DType::F32:
      return convert_floats<float>(out, in, n);
    case DType::F16:
      return convert_floats<f16>(out, in, n);
    case DType::BF16:
      return convert_floats<bf16>(out, in, n);
    default:
      break;
  }
  constexpr int64_t kMaxBlock = 256, kMinGroup = 16;
  const DTypeInfo& type = info(dtype);
  const GroupFormat format = group_format(dtype);
  const CodeValue value{format.bits, format.has_mins, format.table};
  MINFER_CHECK(n % type.block_elements == 0, n, " elements of ", dtype);
  uint8_t codes[kMaxBlock];
  float scales[kMaxBlock / kMinGroup], mins[kMaxBlock / kMinGroup] = {};
  const char* block = static_cast<const char*>(in);
  for (int64_t i = 0; i < n; i += type.block_elements, block += type.block_bytes) {
    unpack_groups(codes, scales, mins, block, dtype, type.block_elements);
    for (int64_t j = 0; j < type.block_elements; ++j) {
      const float x = float(value(codes[j])) * scales[j / format.group];
      out[i + j] = format.has_mins ? x + mins[j / format.group] : x;
    }
  }
}

}  // namespace minfer
