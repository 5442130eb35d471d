#pragma once

#include <cstdint>

#include "kernels/base/half.h"
#include "kernels/base/quant_codec.h"
#include "kernels/cpu/layout.h"

namespace minfer::cpu {

// A quantized matrix is stored in the panels of layout.h too. The 32-bit lane of a row holds the
// codes of neighbouring columns, as the instructions for int8 dot products expect them, and a
// vector of sixteen such words is read at once. 32 columns of a panel are a brick of as many such
// vectors as a code has bits. It has one or two planes, the low bits of the codes and the high
// ones:
//   bits of a code   2     3     4     5     6     8
//   of the planes    2     2, 1  4     4, 1  4, 2  8
// In a plane of L bits a word has 32 / L columns: bits [L f, L f + L) of byte i are column 4 f + i.
// A code of 4 bits may be an index of a table.
// Columns are padded to a multiple of kBrick; the padding is multiplied by inputs that are zero.
//
// Scales and mins are F16 or F32, [n_panels][n_groups][kPanel] each, or products: for every
// kFactorColumns columns of a panel the factors F16 [kPanel] of the scales, then those of the mins
// if there are mins; then for each group its numbers int8 [kPanel], of the scale and of the min.
//
// Every dot product is summed in this order: columns are taken in steps of 32 (of 16 if the group
// is not a multiple of 32). Each step is summed from zero, for f32 inputs in column order by fused
// multiply-adds, for int8 inputs exactly in integers. The total starts from zero; each step adds
// scale * sum and then min * (sum of the step's inputs) to it, each by a fused multiply-add.
constexpr int64_t kBrick = 32;

// What the words of a matrix hold: codes of so many bits, or of 4 bits that are indices of a table
// with 16 entries.
enum class CodeForm { U2, U3, U4, U5, U6, U8, Table };
static constexpr int bits_of(CodeForm form) {
  constexpr int kBits[] = {2, 3, 4, 5, 6, 8, 4};
  return kBits[int(form)];
}
static constexpr int low_bits(int bits) { return bits < 4 ? 2 : bits < 8 ? 4 : 8; }
static constexpr int high_bits(int bits) { return bits - low_bits(bits); }
// Codes of a byte or of half a byte are read as they lie, others are made bytes first.
static constexpr bool is_plain(CodeForm form) {
  return form == CodeForm::U8 || form == CodeForm::U4 || form == CodeForm::Table;
}

// A type of scales beside f16 and float.
struct ScaleProduct {};

struct PackedCodes {
  const uint8_t* codes;
  const int8_t* table;        // or null
  const void *scales, *mins;  // mins: null if there are none, or if scales are products
  DType scale_type;           // F16, F32, or U8: products
  bool has_mins;
  int bits;
  int64_t n_groups, step, steps_per_group, n_steps;

  // An entry of a table counts as the code entry + 128.
  int zero_code() const { return has_mins ? 0 : table != nullptr ? 128 : 1 << (bits - 1); }
  int64_t factor_bytes() const { return 2 * kPanel * (has_mins ? 2 : 1); }
  int64_t number_bytes() const { return kPanel * (has_mins ? 2 : 1); }  // of a group
  // Of kFactorColumns columns of a panel of products, whose groups are steps.
  int64_t product_bytes() const { return factor_bytes() + kFactorColumns / step * number_bytes(); }
};

static constexpr int64_t padded_cols(int64_t cols) { return (cols + kBrick - 1) / kBrick * kBrick; }

static constexpr int64_t packed_panel_bytes(int64_t cols, int64_t bits) {
  return padded_cols(cols) * kPanel * bits / 8;
}

// The code of a row of a panel whose first brick this is. Nothing divides by the variable n: that
// took half of the time of a plain matmul.
static inline int code_at(const uint8_t* panel, int bits, int64_t lane, int64_t column) {
  const uint8_t* plane = panel + column / kBrick * bits * 4 * kPanel;
  const auto at = unsigned(column % kBrick);
  const auto bits_at = [&](int n) {
    const unsigned bit = at * unsigned(n), word = bit / 32;  // of the first of four columns' fields
    return plane[(word * kPanel + lane) * 4 + column % 4] >> (bit % 32 / 4 & -n) & ((1 << n) - 1);
  };
  const int low = low_bits(bits), high = high_bits(bits);
  const int code = bits_at(low);
  if (high == 0) return code;
  plane += low * 4 * kPanel;
  return code | bits_at(high) << low;
}

// The scale of a group in a row of a panel, and its min, which is 0 if there are no mins.
struct ScaleAndMin {
  float scale, min;
};
static inline ScaleAndMin scale_at(const PackedCodes& w, int64_t panel, int64_t group,
                                   int64_t lane) {
  if (w.scale_type == DType::U8) {
    const int64_t groups = kFactorColumns / w.step;
    const uint8_t* const block =
        static_cast<const uint8_t*>(w.scales) +
        (panel * (w.n_groups / groups) + group / groups) * w.product_bytes();
    const auto* const factors = reinterpret_cast<const f16*>(block) + lane;
    const auto* const numbers = reinterpret_cast<const int8_t*>(
        block + w.factor_bytes() + group % groups * w.number_bytes() + lane);
    return {to_f32(factors[0]) * float(numbers[0]),
            w.has_mins ? to_f32(factors[kPanel]) * float(numbers[kPanel]) : 0};
  }
  const int64_t at = (panel * w.n_groups + group) * kPanel + lane;
  const auto value = [&](const void* p) {
    return w.scale_type == DType::F16 ? to_f32(static_cast<const f16*>(p)[at])
                                      : static_cast<const float*>(p)[at];
  };
  return {value(w.scales), w.has_mins ? value(w.mins) : 0};
}

// Calls f.operator()<form of the codes, type of scales, columns of a step>().
template <typename F>
static inline void visit_codes(const PackedCodes& w, F&& f) {
  constexpr int kHalf = kBrick / 2, kWhole = kBrick;
  const auto with_step = [&]<CodeForm kCodes, typename Scale>() {
    w.step == kBrick ? f.template operator()<kCodes, Scale, kWhole>()
                     : f.template operator()<kCodes, Scale, kHalf>();
  };
  const auto with_scale = [&]<CodeForm kCodes>() {
    w.scale_type == DType::F16 ? with_step.template operator()<kCodes, f16>()
                               : with_step.template operator()<kCodes, float>();
  };
  const bool products = w.scale_type == DType::U8;
  if (w.table != nullptr) {
    products ? f.template operator()<CodeForm::Table, ScaleProduct, kWhole>()
             : with_scale.template operator()<CodeForm::Table>();
    return;
  }
  switch (w.bits) {  // which of these have which scales: group_format()
    case 2:
      return f.template operator()<CodeForm::U2, ScaleProduct, kHalf>();
    case 3:
      return f.template operator()<CodeForm::U3, ScaleProduct, kHalf>();
    case 4:
      return products ? f.template operator()<CodeForm::U4, ScaleProduct, kWhole>()
                      : with_scale.template operator()<CodeForm::U4>();
    case 5:
      return products ? f.template operator()<CodeForm::U5, ScaleProduct, kWhole>()
                      : f.template operator()<CodeForm::U5, f16, kWhole>();
    case 6:
      return f.template operator()<CodeForm::U6, ScaleProduct, kHalf>();
    default:
      return with_scale.template operator()<CodeForm::U8>();
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

}  // namespace minfer::cpu
