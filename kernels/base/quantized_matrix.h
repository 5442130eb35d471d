#pragma once

#include "kernels/base/host_tensor.h"

namespace minfer {

// A weight matrix [out, in] whose rows are quantized in groups of columns that share a scale: what
// loaders deliver, `minfer quantize` makes and every backend packs its own way. A view.
//
//   codes  [out, in], U8 or U4: unsigned, 0 ... 255 or 0 ... 15; in U4 the even column is in the
//           low nibble, so in_dim is even
//   scales  [out, in / group], F16 or F32; may be negative
//   mins    [out, in / group], F32, or null
//   maths   without mins w = scale * (code - zero_code()), which f32 holds exactly for an F16
//           scale; with them w = scale * code + min, product and sum rounded to f32
//
// GGUF's blocks are such matrices (group_format in quant_codec.h), and so are the checkpoints of
// compressed-tensors, GPTQ and AWQ: an integer zero-point z is the min -scale * z.
struct QuantizedMatrix {
  Tensor codes, scales, mins;
  int64_t group = 0;  // columns; divides in_dim; in_dim: one scale a row

  int64_t out_dim() const { return codes.shape[0]; }
  int64_t in_dim() const { return codes.shape[1]; }
  int64_t n_groups() const { return in_dim() / group; }
  int bits() const { return codes.dtype == DType::U4 ? 4 : 8; }
  int zero_code() const { return 1 << (bits() - 1); }
  bool asymmetric() const { return bool(mins); }
  int64_t n_bytes() const {
    return codes.n_bytes() + scales.n_bytes() + (mins ? mins.n_bytes() : 0);
  }
  // Rows [begin, begin + n).
  QuantizedMatrix rows(int64_t begin, int64_t n) const {
    return {codes.rows(begin, n), scales.rows(begin, n), mins ? mins.rows(begin, n) : Tensor(),
            group};
  }
};

// The same with its memory.
struct HostQuantizedMatrix {
  HostTensor codes, scales, mins;
  int64_t group = 0;

  QuantizedMatrix view() const { return {codes.view(), scales.view(), mins.view(), group}; }
  // Becomes another matrix, not initialized, as HostTensor::reset does. U8 or U4 codes, F16 or F32
  // scales; mins where asymmetric.
  void reset(DType code_type, DType scale_type, int64_t out_dim, int64_t in_dim, int64_t group_dim,
             bool asymmetric);
};

// Not initialized, as reset() has it.
HostQuantizedMatrix make_quantized_matrix(DType codes, DType scales, int64_t out_dim,
                                          int64_t in_dim, int64_t group, bool asymmetric);

// host [out, in] of a Q type of GGUF.
HostQuantizedMatrix to_quantized_matrix(const Tensor& host);

// out[i] = w[row][i], i < in_dim.
void dequantize_row(float* out, const QuantizedMatrix& w, int64_t row);

}  // namespace minfer
