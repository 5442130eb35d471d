#pragma once

#include <cstdint>

#include "kernels/base/half.h"

namespace minfer {

// GGUF's quantized blocks, byte for byte as in the file (little endian, no padding). A row is whole
// blocks; what the fields mean is in quant_codec.cpp. Source: ggml's documentation of GGUF types.

struct BlockQ8_0 {  // x[i] = d * q[i]
  static constexpr int64_t kElements = 32;
  f16 d;
  int8_t q[32];
};

struct BlockQ4_0 {  // x[i] = d * (nibble[i] - 8)
  static constexpr int64_t kElements = 32;
  f16 d;
  uint8_t q[16];  // byte j: element j in the low nibble, j + 16 in the high one
};

struct BlockQ4_1 {  // x[i] = d * nibble[i] + m
  static constexpr int64_t kElements = 32;
  f16 d, m;
  uint8_t q[16];  // as in Q4_0
};

struct BlockQ5_0 {  // x[i] = d * (q5[i] - 16)
  static constexpr int64_t kElements = 32;
  f16 d;
  uint8_t high[4];  // bit i: fifth bit of element i
  uint8_t q[16];    // as in Q4_0
};

struct BlockQ5_1 {  // x[i] = d * q5[i] + m
  static constexpr int64_t kElements = 32;
  f16 d, m;
  uint8_t high[4];
  uint8_t q[16];
};

struct BlockQ2_K {  // 16 sub-blocks of 16: x = d * scale[s] * q2 - dmin * min[s]
  static constexpr int64_t kElements = 256;
  uint8_t scales[16];  // scale in the low nibble, min in the high one
  uint8_t q[64];  // each half of 128 elements has 32 bytes; its quarter j the bits 2 j, 2 j + 1
  f16 d, dmin;
};

struct BlockQ3_K {  // 16 sub-blocks of 16: x = d * (scale[s] - 32) * (q3 - 4)
  static constexpr int64_t kElements = 256;
  uint8_t high[32];    // byte i, bit 4 h + j: third bit of element i of quarter j of half h
  uint8_t q[64];       // low two bits, as in Q2_K
  uint8_t scales[12];  // sixteen of 6 bits
  f16 d;
};

struct BlockQ4_K {  // 8 sub-blocks of 32: x = d * scale[s] * nibble - dmin * min[s]
  static constexpr int64_t kElements = 256;
  f16 d, dmin;
  uint8_t scales[12];  // eight 6-bit scales and eight 6-bit mins
  uint8_t q[128];      // bytes 32 j ...: sub-block 2 j in the low nibbles, 2 j + 1 in the high ones
};

struct BlockQ5_K {  // as Q4_K with a fifth bit
  static constexpr int64_t kElements = 256;
  f16 d, dmin;
  uint8_t scales[12];
  uint8_t high[32];  // byte i, bit s: fifth bit of element i of sub-block s
  uint8_t q[128];
};

struct BlockQ6_K {  // 16 sub-blocks of 16: x = d * scale[s] * (q6 - 32)
  static constexpr int64_t kElements = 256;
  uint8_t low[128];  // low four bits
  uint8_t high[64];  // upper two bits
  int8_t scales[16];
  f16 d;
};

struct BlockIQ4_NL {  // x[i] = d * table[nibble[i]]
  static constexpr int64_t kElements = 32;
  f16 d;
  uint8_t q[16];  // as in Q4_0
};

struct BlockIQ4_XS {  // 8 sub-blocks of 32: x = d * (scale[s] - 32) * table[nibble]
  static constexpr int64_t kElements = 256;
  f16 d;
  uint16_t scales_high;   // bits 2 s, 2 s + 1: upper two bits of scale s
  uint8_t scales_low[4];  // its low four bits, two a byte
  uint8_t q[128];         // 16 bytes for each sub-block, as in Q4_0
};

struct BlockMXFP4 {  // x[i] = 2^(e - 128) * table[nibble[i]]: twice the values of E2M1 floats
  static constexpr int64_t kElements = 32;
  uint8_t e;
  uint8_t q[16];  // as in Q4_0
};

static_assert(sizeof(BlockQ8_0) == 34 && sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20);
static_assert(sizeof(BlockQ5_0) == 22 && sizeof(BlockQ5_1) == 24 && sizeof(BlockQ4_K) == 144);
static_assert(sizeof(BlockQ5_K) == 176 && sizeof(BlockQ6_K) == 210);
static_assert(sizeof(BlockQ2_K) == 84 && sizeof(BlockQ3_K) == 110 && sizeof(BlockIQ4_NL) == 18);
static_assert(sizeof(BlockIQ4_XS) == 136 && sizeof(BlockMXFP4) == 17);

}  // namespace minfer
