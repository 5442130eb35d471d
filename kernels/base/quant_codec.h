#pragma once

#include <span>

#include "kernels/base/dtype.h"

namespace minfer {

// out[i] = the value of element i of a row of n elements stored as dtype; what a format means is
// defined here and nowhere else.
//
//   in    n elements in whole blocks, as in the file; no alignment needed
//   maths f32, each product and sum rounded once, in the order that ggml uses: equal bits
void dequantize_row(float* out, const void* in, DType dtype, int64_t n);

// The reverse, for the float types, Q8_0 and Q4_0: out gets the n elements in whole blocks. The
// scales are those that ggml chooses (max|x| / 127; the x of largest size / -8), so that the bytes
// are equal.
void encode_row(void* out, const float* in, DType dtype, int64_t n);

// What a code of four bits stands for: itself less the zero code, or an entry of a table.
enum class CodeTable : uint8_t {
  None,
  Iq4,   // ggml's for IQ4_NL and IQ4_XS, in steps that grow away from 0
  E2m1,  // twice the values of floats with one bit of mantissa and two of exponent: MXFP4, whose
         // scales are powers of two
};
std::span<const int8_t, 16> entries_of(CodeTable table);  // not of None

// The whole number that a code stands for, which its scale multiplies.
class CodeValue {
 public:
  CodeValue(int bits, bool has_mins, CodeTable table)
      : zero_(has_mins ? 0 : 1 << (bits - 1)),
        entries_(table == CodeTable::None ? nullptr : entries_of(table).data()) {}
  int operator()(int code) const { return entries_ == nullptr ? code - zero_ : entries_[code]; }

 private:
  int zero_;
  const int8_t* entries_;
};

constexpr int64_t kFactorColumns = 256;

// How the elements of a matrix are quantized: codes of some bits, and a scale for each group of
// columns.
struct GroupFormat {
  int bits;       // of a code
  int64_t group;  // columns that share a scale
  bool has_mins;  // else the codes' zero is 1 << (bits - 1), unless they have a table
  DType scales;   // F16 or F32, that holds every scale exactly
  CodeTable table = CodeTable::None;
  // Whether scales are whole numbers of eight bits times a factor in F16, one for kFactorColumns
  // columns, and mins alike with another factor.
  bool products = false;
};
GroupFormat group_format(DType dtype);  // of a Q type

// The same elements as a QuantizedMatrix (quantized_matrix.h) has them: codes of 4 or 8 bits, and
// the products of factors and numbers.
GroupFormat widened(GroupFormat format);

// Bytes of the scales and mins of n elements, mins being of the scales' type.
int64_t scale_bytes(const GroupFormat& format, int64_t n);

// The groups of a block of a Q type: their scales are factor * scales[g] and their mins
// min_factor * mins[g], each product rounded to f32.
struct BlockScales {
  float factor, min_factor;
  int8_t scales[16], mins[16];  // mins: of formats that have them
};

// codes: one a byte, of the format's bits.
void unpack_block(uint8_t* codes, BlockScales& scales, const void* block, DType dtype);

// n elements of a row in whole blocks of a Q type: codes [n], one a byte, of the format's bits;
// scales and mins [n / group]. mins are not touched where the format has none.
void unpack_groups(uint8_t* codes, float* scales, float* mins, const void* in, DType dtype,
                   int64_t n);

// Whether every scale and min of n elements of a Q type is finite, and so every element: one of a
// group whose scale is not is NaN or infinite at any code.
bool has_finite_scales(const void* in, DType dtype, int64_t n);

}  // namespace minfer
