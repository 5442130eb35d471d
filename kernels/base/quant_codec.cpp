#include "kernels/base/quant_codec.h"

#include <cstring>

#include "kernels/base/quant_blocks.h"

namespace minfer {
namespace {

void dequantize(float* out, const BlockQ8_0& b) {
  const float d = to_f32(b.d);
  for (int i = 0; i < 32; ++i) out[i] = float(b.q[i]) * d;
}

void dequantize(float* out, const BlockQ4_0& b) {
  const float d = to_f32(b.d);
  for (int i = 0; i < 16; ++i) {
    out[i] = float((b.q[i] & 15) - 8) * d;
    out[i + 16] = float((b.q[i] >> 4) - 8) * d;
  }
}

void dequantize(float* out, const BlockQ4_1& b) {
  const float d = to_f32(b.d), m = to_f32(b.m);
  for (int i = 0; i < 16; ++i) {
    out[i] = float(b.q[i] & 15) * d + m;
    out[i + 16] = float(b.q[i] >> 4) * d + m;
  }
}

// Fifth bit of element i, in place above a nibble.
int fifth_bit(const uint8_t (&high)[4], int i) { return ((high[i / 8] >> (i % 8)) & 1) << 4; }

void dequantize(float* out, const BlockQ5_0& b) {
  const float d = to_f32(b.d);
  for (int i = 0; i < 16; ++i) {
    out[i] = float(((b.q[i] & 15) | fifth_bit(b.high, i)) - 16) * d;
    out[i + 16] = float(((b.q[i] >> 4) | fifth_bit(b.high, i + 16)) - 16) * d;
  }
}

void dequantize(float* out, const BlockQ5_1& b) {
  const float d = to_f32(b.d), m = to_f32(b.m);
  for (int i = 0; i < 16; ++i) {
    out[i] = float((b.q[i] & 15) | fifth_bit(b.high, i)) * d + m;
    out[i + 16] = float((b.q[i] >> 4) | fifth_bit(b.high, i + 16)) * d + m;
  }
}

struct ScaleMin {
  int scale, min;
};

// Sub-block s of the 12 packed bytes of Q4_K and Q5_K. The first four scales and mins are the low
// six bits of bytes 0..3 and 4..7; the last four have their low nibbles in bytes 8..11 and their
// upper two bits on top of the first eight bytes.
ScaleMin scale_min(const uint8_t (&p)[12], int s) {
  if (s < 4) return {p[s] & 63, p[s + 4] & 63};
  return {(p[s + 4] & 15) | ((p[s - 4] >> 6) << 4), (p[s + 4] >> 4) | ((p[s] >> 6) << 4)};
}

void dequantize(float* out, const BlockQ4_K& b) {
  for (int s = 0; s < 8; ++s) {
    const ScaleMin k = scale_min(b.scales, s);
    const float d = to_f32(b.d) * float(k.scale), m = to_f32(b.dmin) * float(k.min);
    const uint8_t* q = b.q + 32 * (s / 2);
    for (int i = 0; i < 32; ++i) out[32 * s + i] = d * float((q[i] >> (4 * (s % 2))) & 15) - m;
  }
}

void dequantize(float* out, const BlockQ5_K& b) {
  for (int s = 0; s < 8; ++s) {
    const ScaleMin k = scale_min(b.scales, s);
    const float d = to_f32(b.d) * float(k.scale), m = to_f32(b.dmin) * float(k.min);
    const uint8_t* q = b.q + 32 * (s / 2);
    for (int i = 0; i < 32; ++i) {
      const int low = (q[i] >> (4 * (s % 2))) & 15, high = ((b.high[i] >> s) & 1) << 4;
      out[32 * s + i] = d * float(low | high) - m;
    }
  }
}

// Each half of 128 elements: 64 bytes of low nibbles, 32 bytes of upper bit pairs, 8 scales.
// Quarter j of a half takes the low nibbles of bytes 0..31 or 32..63, then their high nibbles.
void dequantize(float* out, const BlockQ6_K& b) {
  const float d = to_f32(b.d);
  for (int half = 0; half < 2; ++half) {
    for (int j = 0; j < 4; ++j) {
      for (int i = 0; i < 32; ++i) {
        const int low = (b.low[64 * half + 32 * (j % 2) + i] >> (4 * (j / 2))) & 15;
        const int high = (b.high[32 * half + i] >> (2 * j)) & 3;
        const float scale = d * float(b.scales[8 * half + 2 * j + i / 16]);
        out[128 * half + 32 * j + i] = scale * float((low | (high << 4)) - 32);
      }
    }
  }
}

template <typename Block>
void dequantize_blocks(float* out, const void* in, int64_t n) {
  const char* bytes = static_cast<const char*>(in);
  for (int64_t i = 0; i < n; i += Block::kElements, bytes += sizeof(Block)) {
    Block block;
    std::memcpy(&block, bytes, sizeof block);
    dequantize(out + i, block);
  }
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

}  // namespace

void dequantize_row(float* out, const void* in, DType dtype, int64_t n) {
  MINFER_CHECK(n % info(dtype).block_elements == 0, n, " elements of ", dtype);
  switch (dtype) {
    case DType::F32:
      return convert_floats<float>(out, in, n);
    case DType::F16:
      return convert_floats<f16>(out, in, n);
    case DType::BF16:
      return convert_floats<bf16>(out, in, n);
    case DType::Q8_0:
      return dequantize_blocks<BlockQ8_0>(out, in, n);
    case DType::Q4_0:
      return dequantize_blocks<BlockQ4_0>(out, in, n);
    case DType::Q4_1:
      return dequantize_blocks<BlockQ4_1>(out, in, n);
    case DType::Q5_0:
      return dequantize_blocks<BlockQ5_0>(out, in, n);
    case DType::Q5_1:
      return dequantize_blocks<BlockQ5_1>(out, in, n);
    case DType::Q4_K:
      return dequantize_blocks<BlockQ4_K>(out, in, n);
    case DType::Q5_K:
      return dequantize_blocks<BlockQ5_K>(out, in, n);
    case DType::Q6_K:
      return dequantize_blocks<BlockQ6_K>(out, in, n);
  }
  MINFER_CHECK(false, "dequantize_row: unknown dtype");
}

}  // namespace minfer
