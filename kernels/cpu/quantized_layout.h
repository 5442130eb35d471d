#pragma once

#include <cstdint>

#include "kernels/base/half.h"
#include "kernels/cpu/layout.h"

namespace minfer::cpu {

// A quantized matrix is stored in the panels of layout.h too. The 32-bit lane of a row holds the
// codes of neighbouring columns, as the instructions for int8 dot products expect them, and a
// vector of sixteen such words is read at once:
//   4 bits  [cols / 8][16] words; byte i: column i in the low nibble, column 4 + i in the high one
//   8 bits  [cols / 4][16] words; byte i: column i
// A code of 4 bits may be an index of a table.
// Columns are padded to a multiple of kBrick; the padding is multiplied by inputs that are zero.
//
// Every dot product is summed in this order: columns are taken in steps of 32 (of 16 if the group
// is not a multiple of 32). Each step is summed from zero, for f32 inputs in column order by fused
// multiply-adds, for int8 inputs exactly in integers. The total starts from zero; each step adds
// scale * sum and then min * (sum of the step's inputs) to it, each by a fused multiply-add.
constexpr int64_t kBrick = 32;

// What the words of a matrix hold: codes of 8 or of 4 bits, or of 4 bits that are indices of a
// table with 16 entries.
enum class CodeForm { U8, U4, Table };
static constexpr int bits_of(CodeForm form) { return form == CodeForm::U8 ? 8 : 4; }

struct PackedCodes {
  const uint8_t* codes;
  const int8_t* table;        // or null
  const void *scales, *mins;  // [n_panels][n_groups][kPanel]; mins may be null
  bool half_scales;           // scales and mins are F16, else F32
  int bits;                   // 4 or 8
  int64_t n_groups, step, steps_per_group, n_steps;

  // An entry of a table counts as the code entry + 128.
  int zero_code() const { return mins != nullptr ? 0 : table != nullptr ? 128 : 1 << (bits - 1); }
};

static constexpr int64_t padded_cols(int64_t cols) { return (cols + kBrick - 1) / kBrick * kBrick; }

static constexpr int64_t packed_panel_bytes(int64_t cols, int64_t bits) {
  return padded_cols(cols) * kPanel * bits / 8;
}

// Returns the bit at which the code of a word's column c begins.
static constexpr int code_shift(int bits, int c) {
  return bits == 8 ? 8 * c : c < 4 ? 8 * c : 8 * (c - 4) + 4;
}

// Calls f.operator()<form of the codes, type of scales, columns of a step>().
template <typename F>
static inline void visit_codes(const PackedCodes& w, F&& f) {
  const auto with_step = [&]<CodeForm kCodes, typename Scale>() {
    w.step == kBrick ? f.template operator()<kCodes, Scale, int{kBrick}>()
                     : f.template operator()<kCodes, Scale, int{kBrick / 2}>();
  };
  const auto with_scale = [&]<CodeForm kCodes>() {
    w.half_scales ? with_step.template operator()<kCodes, f16>()
                  : with_step.template operator()<kCodes, float>();
  };
  if (w.table != nullptr) {
    with_scale.template operator()<CodeForm::Table>();
  } else if (w.bits == 4) {
    with_scale.template operator()<CodeForm::U4>();
  } else {
    with_scale.template operator()<CodeForm::U8>();
  }
}

// How a matmul with int8 inputs represents an input row.
enum class InputForm {
  Symmetric,
  Asymmetric,
  Planes,  // f32 as three int8 codes: a sign and 22 bits, relative to the largest of 32 columns
};
static constexpr int n_planes(InputForm form) { return form == InputForm::Planes ? 3 : 1; }

// 32 columns of an input row as int8: x = (code + minus_zero) * scale. In the form Planes, x is the
// sum of that over the planes; a row is then [n_input_blocks][n_planes], the most significant plane
// first. Columns past the end of the row have codes that mean 0. A block with a value that is not
// finite has the scale NaN.
struct InputBlock {
  float scale;
  int32_t minus_zero;  // 0 except in the asymmetric form
  // [0] is for the whole block, or [0] and [1] are for its halves if the weights' steps have 16
  // columns. `start` is -zero_code * sum of (code + minus_zero), with which the integer sum starts;
  // it is 0 for weights with mins. `sum` is the sum of x.
  int32_t start[2];
  float sum[2];
  int8_t codes[kBrick];
};

static constexpr int64_t n_input_blocks(int64_t cols) { return padded_cols(cols) / kBrick; }
// The buffer of input blocks has this many rows past the last one, because a tile may read them.
constexpr int64_t kSpareInputRows = 8;

struct InputFormat {
  InputForm form;
  int64_t step;   // columns of a step of the weights
  int zero_code;  // the weights' zero code
};

// A block whose largest magnitude is below this becomes zeros, so that the inverse of every other
// block's scale is finite.
constexpr float kSmallestInput = 0x1p-100f;

// Follows a panel step by step and knows the group of the present step.
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
  int64_t offset;  // of the group's scales within the panel's scales
  int64_t left, steps_per_group;
};

}  // namespace minfer::cpu
