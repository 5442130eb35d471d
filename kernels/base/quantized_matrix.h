#pragma once

#include "kernels/base/host_tensor.h"
#include "kernels/base/quant_codec.h"

namespace minfer {

// A view of a weight matrix [out, in] whose rows are quantized in groups of columns that share a
// scale. Loaders and `minfer quantize` produce it; every backend packs it in a layout of its own.
//
//   codes   [out, in], U8 or U4: unsigned, 0 ... 255 or 0 ... 15; in U4 the even column is in the
//           low nibble, and in_dim is even
//   scales  [out, in / group], F16 or F32; may be negative
//   mins    [out, in / group], F32, or null
//   maths   without mins w = scale * (code - zero_code()), which f32 holds exactly for an F16
//           scale; with them w = scale * code + min, product and sum rounded to f32; with a table
//           of U4, which has no mins, w = scale * entry(code)
//
// GGUF's block types fit this form (group_format in quant_codec.h), and so do the checkpoints of
// compressed-tensors, GPTQ and AWQ: an integer zero-point z becomes min = -scale * z.
struct QuantizedMatrix {
  Tensor codes, scales, mins;
  int64_t group = 0;  // columns that share a scale; divides in_dim; in_dim: one scale per row
  CodeTable table = CodeTable::None;

  int64_t out_dim() const { return codes.shape[0]; }
  int64_t in_dim() const { return codes.shape[1]; }
  int64_t n_groups() const { return in_dim() / group; }
  int bits() const { return codes.dtype == DType::U4 ? 4 : 8; }
  int zero_code() const { return 1 << (bits() - 1); }  // without mins and table
  bool asymmetric() const { return bool(mins); }
  int64_t n_bytes() const {
    return codes.n_bytes() + scales.n_bytes() + (mins ? mins.n_bytes() : 0);
  }
  // Returns rows [begin, begin + n).
  QuantizedMatrix rows(int64_t begin, int64_t n) const {
    return {codes.rows(begin, n), scales.rows(begin, n), mins ? mins.rows(begin, n) : Tensor(),
            group, table};
  }
};

// A quantized matrix that owns its memory.
struct HostQuantizedMatrix {
  HostTensor codes, scales, mins;
  int64_t group = 0;
  CodeTable table = CodeTable::None;

  QuantizedMatrix view() const { return {codes.view(), scales.view(), mins.view(), group, table}; }
  // Turns this into another matrix, not initialized, as HostTensor::reset does. Codes are U8 or U4,
  // scales F16 or F32; only an asymmetric matrix has mins. There is no table.
  void reset(DType code_type, DType scale_type, int64_t out_dim, int64_t in_dim, int64_t group_dim,
             bool asymmetric);
};

// Makes a matrix by reset(): it is not initialized.
HostQuantizedMatrix make_quantized_matrix(DType codes, DType scales, int64_t out_dim,
                                          int64_t in_dim, int64_t group, bool asymmetric);

// Converts host [out, in], which has one of GGUF's Q types, on up to n_threads threads.
HostQuantizedMatrix to_quantized_matrix(const Tensor& host, int n_threads = 1);

// out[i] = w[row][i], i < in_dim.
void dequantize_row(float* out, const QuantizedMatrix& w, int64_t row);

}  // namespace minfer
