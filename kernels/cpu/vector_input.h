#pragma once

// Quantizes the inputs of a matmul to int8 for one instruction set; quantized_layout.h has the
// forms.

namespace minfer::cpu {
namespace {

// lanes 0 ... 15 of a block and 16 ... 31
struct BlockLanes {
  F32x16 low, high;
};

inline uint32_t largest_magnitude_bits(const BlockLanes& x) {
  return max_lane(max(magnitude_bits(x.low), magnitude_bits(x.high)));
}

// Calls f(lanes) for each block of each row of x [n_rows, cols], padded with zeros.
template <typename F>
inline void for_blocks(const float* x, int64_t n_rows, int64_t cols, F&& f) {
  for (int64_t row = 0; row < n_rows; ++row, x += cols) {
    for (int64_t k = 0; k < cols; k += kBrick) {
      const int64_t n = cols - k;
      const F32x16 low = n >= kPanel ? load(x + k) : load_first(x + k, n, 0);
      const F32x16 high = n >= kBrick   ? load(x + k + kPanel)
                          : n <= kPanel ? splat(0)
                                        : load_first(x + k + kPanel, n - kPanel, 0);
      f(BlockLanes{low, high});
    }
  }
}

// The quantized form of one block: code = round(x * inverse) + zero.
struct BlockScale {
  float scale, inverse, zero;
};

inline BlockScale block_scale(const BlockLanes& x, bool asymmetric) {
  const float magnitude = __builtin_bit_cast(float, largest_magnitude_bits(x));
  if (magnitude < kSmallestInput) return {0, 0, 0};
  if (!(magnitude <= __FLT_MAX__)) return {__builtin_nanf(""), 0, 0};
  if (!asymmetric) return {magnitude / 127, 127 / magnitude, 0};
  const F32x16 zeros = splat(0);
  const float highest = max_lane(max(zeros, max(x.low, x.high)));
  const float lowest = -max_lane(max(zeros, max(zeros - x.low, zeros - x.high)));
  const float range = highest - lowest, inverse = 255 / range;
  if (!(range <= __FLT_MAX__)) return {__builtin_nanf(""), 0, 0};
  return {range / 255, inverse, first_lane(round(splat(-128 - lowest * inverse)))};
}

inline void set_sums(InputBlock& block, int half, int64_t sum, int zero_code) {
  block.start[half] = int32_t(-zero_code * sum);
  block.sum[half] = block.scale * float(sum);
}

inline void quantize_block(InputBlock& block, const BlockLanes& x, const InputFormat& format) {
  const BlockScale to = block_scale(x, format.form == InputForm::Asymmetric);
  if (to.inverse == 0) {  // all zeros, or not finite
    block = {
        .scale = to.scale, .minus_zero = 0, .start = {}, .sum = {to.scale, to.scale}, .codes = {}};
    return;
  }
  const F32x16 inverse = splat(to.inverse), zero = splat(to.zero);
  const F32x16 highest = splat(127);  // no code is below -128: zero is rounded from `lowest`
  const F32x16 low = min(highest, round(x.low * inverse) + zero);
  const F32x16 high = min(highest, round(x.high * inverse) + zero);
  store(block.codes, low);
  store(block.codes + kPanel, high);
  block.scale = to.scale;
  block.minus_zero = -int(to.zero);
  if (format.step == kBrick) {
    set_sums(block, 0, int(sum_lanes(low + high)) + kBrick * block.minus_zero, format.zero_code);
    set_sums(block, 1, 0, format.zero_code);  // not read
  } else {
    set_sums(block, 0, int(sum_lanes(low)) + kPanel * block.minus_zero, format.zero_code);
    set_sums(block, 1, int(sum_lanes(high)) + kPanel * block.minus_zero, format.zero_code);
  }
}

void quantize_input(InputBlock* out, const float* x, int64_t n_rows, int64_t cols,
                    const InputFormat& format) {
  for_blocks(x, n_rows, cols,
             [&](const BlockLanes& lanes) { quantize_block(*out++, lanes, format); });
}

}  // namespace
}  // namespace minfer::cpu
