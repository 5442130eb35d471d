#pragma once

#include <cstdint>

#include "kernels/base/half.h"
#include "kernels/cpu/layout.h"

namespace minfer::cpu {

// A quantized matrix is in the panels of layout.h too. The 32-bit lane of a row holds the codes of
// neighbouring columns, which is what the instructions for products of bytes take, and a vector of
// sixteen such words is read at once:
//   4 bits  [cols / 8][16] words; byte i: column i in the low nibble, column 4 + i in the high one
//   8 bits  [cols / 4][16] words; byte i: column i
// Columns go on to a whole brick of 32; what is past the end meets inputs that are zero.
//
// The order of every sum: steps of 32 columns (16 where a group is not whole steps of 32), each
// summed from zero, in order by fused multiply-adds or exactly in integers; the total of the steps
// starts from zero and takes scale * sum, then min * (sum of the step's inputs), each fused.
constexpr int64_t kBrick = 32;

struct PackedCodes {
  const uint8_t* codes;
  const void *scales, *mins;  // [n_panels][n_groups][kPanel]; mins may be null
  bool half_scales;           // scales and mins are F16, else F32
  int bits;                   // 4 or 8
  int64_t n_groups, step, steps_per_group, n_steps;

  int zero_code() const { return mins != nullptr ? 0 : 1 << (bits - 1); }
};

static constexpr int64_t padded_cols(int64_t cols) { return (cols + kBrick - 1) / kBrick * kBrick; }

static constexpr int64_t packed_panel_bytes(int64_t cols, int64_t bits) {
  return padded_cols(cols) * kPanel * bits / 8;
}

// Where column c of a word's columns begins, in bits.
static constexpr int code_shift(int bits, int c) {
  return bits == 8 ? 8 * c : c < 4 ? 8 * c : 8 * (c - 4) + 4;
}

// Calls f.operator()<bits, type of scales, columns of a step>().
template <typename F>
static inline void visit_codes(const PackedCodes& w, F&& f) {
  const auto with_step = [&]<int kBits, typename Scale>() {
    w.step == kBrick ? f.template operator()<kBits, Scale, int{kBrick}>()
                     : f.template operator()<kBits, Scale, int{kBrick / 2}>();
  };
  const auto with_scale = [&]<int kBits>() {
    w.half_scales ? with_step.template operator()<kBits, f16>()
                  : with_step.template operator()<kBits, float>();
  };
  w.bits == 4 ? with_scale.template operator()<4>() : with_scale.template operator()<8>();
}

// How the products of bytes see an input row.
enum class InputForm {
  Symmetric,
  Asymmetric,
  Planes,  // of f32 in three bytes: 22 bits and a sign, counted from the largest of 32 columns on
};
static constexpr int n_planes(InputForm form) { return form == InputForm::Planes ? 3 : 1; }

// 32 columns of an input row as int8: x = (code + minus_zero) * scale, or the sum of that over the
// planes, [n_input_blocks][n_planes], the most significant one first. Columns past the end of the
// row are codes that mean 0. A block with a value that is not finite has the scale NaN.
struct InputBlock {
  float scale;
  int32_t minus_zero;  // 0 but in the asymmetric form
  // Of the whole block in [0], or of its halves where the weights' steps are of 16 columns:
  // -zero_code * (sum of codes + minus_zero), for weights without mins, and the sum of x.
  int32_t start[2];
  float sum[2];
  int8_t codes[kBrick];
};

static constexpr int64_t n_input_blocks(int64_t cols) { return padded_cols(cols) / kBrick; }
// Rows of the buffer of input blocks past the last one, which a tile may read.
constexpr int64_t kSpareInputRows = 8;

struct InputFormat {
  InputForm form;
  int64_t step;   // of the weights
  int zero_code;  // of the weights
};

// Blocks whose largest magnitude is below this become zeros: the inverse of the scale is finite.
constexpr float kSmallestInput = 0x1p-100f;

// Walks over the groups of a panel, step by step.
struct GroupCursor {
  explicit GroupCursor(const PackedCodes& w, int64_t step = 0)
      : offset(step / w.steps_per_group * kPanel),
        left(w.steps_per_group - step % w.steps_per_group),
        steps_per_group(w.steps_per_group) {}
  void next_step() {
    if (--left > 0) return;
    left = steps_per_group;
    offset += kPanel;
  }
  int64_t offset;  // of the group's scales in those of the panel
  int64_t left, steps_per_group;
};

}  // namespace minfer::cpu
