#pragma once

// f32 inputs of a matmul as planes of int8 codes, for instruction sets whose int8 dot products are
// more than three times as fast as f32 ones: quantized_layout.h. Included after vector_input.h.

namespace minfer::cpu {
namespace {

constexpr int kPlanes = n_planes(InputForm::Planes);

// x = 2^16 top + 2^8 middle + bottom, in units of a power of two that brings the largest magnitude
// of the block into [2^21, 2^22), so the rounding error is at most 2^-22 of it. The bytes are
// signed: each is subtracted from the number before the next one is taken.
inline void quantize_to_planes(InputBlock* planes, const BlockLanes& x, const InputFormat& format) {
  constexpr uint32_t kMantissaBits = 23, kBias = 127, kCodeBits = 21;
  const uint32_t bits = largest_magnitude_bits(x);
  const float magnitude = __builtin_bit_cast(float, bits);
  const uint32_t exponent = bits >> kMantissaBits;
  float unit = __builtin_bit_cast(float, (exponent - kCodeBits) << kMantissaBits);
  float inverse = __builtin_bit_cast(float, (2 * kBias + kCodeBits - exponent) << kMantissaBits);
  if (magnitude < kSmallestInput) unit = inverse = 0;
  if (!(magnitude <= __FLT_MAX__)) unit = __builtin_nanf("");
  I32x16 low = to_int(x.low * splat(inverse)), high = to_int(x.high * splat(inverse));
  for (int plane = kPlanes - 1; plane >= 0; --plane, unit *= 256) {
    InputBlock& block = planes[plane];
    block.scale = unit;
    block.minus_zero = 0;
    const I8x32 codes = low_bytes(low, high);
    store(block.codes, codes);
    low = without_low_byte(low);
    high = without_low_byte(high);
    int sums[2];
    sum_halves(sums, codes);
    if (format.step == kBrick) sums[0] += sums[1];
    for (int half = 0; half < 2; ++half) set_sums(block, half, sums[half], format.zero_code);
  }
}

void quantize_planes(InputBlock* out, const float* x, int64_t n_rows, int64_t cols,
                     const InputFormat& format) {
  for_blocks(x, n_rows, cols, [&](const BlockLanes& lanes) {
    quantize_to_planes(out, lanes, format);
    out += kPlanes;
  });
}

}  // namespace
}  // namespace minfer::cpu
