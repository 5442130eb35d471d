#pragma once

#include "kernels/base/host_tensor.h"

namespace minfer {

// x [rows, cols] of a float dtype as [cols, rows].
HostTensor transposed(const Tensor& x);

// Rows (2 i, 2 i + 1) of each head, a rotary pair in GGUF and llama2.c files, become rows i and i +
// rotary_dim / 2 of it; the rows past rotary_dim stay. Angles belong to pairs, so queries and keys
// that are both put so give the same scores.
//   x  [n_heads * head_dim, in] or [n_heads * head_dim], any dtype
HostTensor rope_pairs_to_halves(const Tensor& x, int64_t n_heads, int64_t rotary_dim);

// Index in storage order of the first NaN or infinity, or -1. Quantized: of the values they mean.
int64_t first_non_finite(const Tensor& x);

}  // namespace minfer
