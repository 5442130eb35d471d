#pragma once

#include "kernels/base/host_tensor.h"
#include "kernels/base/quantized_matrix.h"

namespace minfer {

// x [rows, cols] of a float dtype as [cols, rows].
HostTensor transposed(const Tensor& x);

// Rows (2 i, 2 i + 1) of each head, a rotary pair in GGUF and llama2.c files, become rows i and i +
// rotary_dim / 2 of it; the rows past rotary_dim stay. Angles belong to pairs, so queries and keys
// that are both put so give the same scores.
//   x  [n_heads * head_dim, in] or [n_heads * head_dim], any dtype
HostTensor rope_pairs_to_halves(const Tensor& x, int64_t n_heads, int64_t rotary_dim);

// Where row `row` of such pairs lies in halves.
int64_t rope_row_in_halves(int64_t row, int64_t head_dim, int64_t rotary_dim);

// Rows of one head after the other, each its query, its key and its value, become those of all
// queries, then of all keys, then of all values, and the other way round.
//   x  [3 * n_heads * head_dim, in] or [3 * n_heads * head_dim], any dtype
HostTensor qkv_by_head_to_blocks(const Tensor& x, int64_t n_heads);
HostQuantizedMatrix qkv_by_head_to_blocks(const QuantizedMatrix& x, int64_t n_heads);
// Where such a row lies in blocks.
int64_t qkv_row_in_blocks(int64_t row, int64_t n_rows, int64_t n_heads);
HostQuantizedMatrix rope_pairs_to_halves(const QuantizedMatrix& x, int64_t n_heads,
                                         int64_t rotary_dim);

// Index in storage order of the first NaN or infinity, or -1. Quantized: of the values they mean.
int64_t first_non_finite(const Tensor& x);

}  // namespace minfer
