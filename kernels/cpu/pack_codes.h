#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/quantized_layout.h"

namespace minfer::cpu {

// One row of a quantized matrix, before it is packed into a panel.
struct CodeRow {
  std::vector<uint8_t> codes;       // [padded_cols(in_dim)], one per byte; 0 past in_dim
  std::vector<float> scales, mins;  // [in_dim / group]; mins: may be empty
  std::vector<BlockScales> blocks;  // [in_dim / kFactorColumns], in place of these, for products
};

// A quantized matrix to be packed, whatever its source.
struct CodeRows {
  int64_t out_dim, in_dim;
  DType dtype;                                      // of Matrix
  GroupFormat format;                               // as it is kept
  std::function<void(CodeRow&, int64_t row)> read;  // called from any thread
};

CodeRows code_rows(const QuantizedMatrix& host);  // host must outlive it
CodeRows code_rows(const Tensor& host);           // of a Q type; host's data must outlive it

// Allocates the packed matrix of `rows`, not yet filled; `backend` allocates its tensors.
Matrix allocate_codes(const CodeRows& rows, Backend& backend);
void pack_code_panel(const Matrix& to, const CodeRows& rows, int64_t panel);

int64_t step_columns(int64_t in_dim, int64_t group);  // that PackedCodes::step has
PackedCodes packed_codes(const Matrix& matrix);

// out[i] = element [row, i], with the same value as dequantize_row.
void unpack_code_row(float* out, const Matrix& matrix, int64_t row);

}  // namespace minfer::cpu
