#pragma once

#include <cuda.h>

#include "kernels/base/tensor.h"

// Tensor maps for TMA copies of boxes (gemm/tma.cuh, attention/tensor_core.cuh).
namespace minfer::cuda {

// Map of a row-major matrix, in boxes of box_rows rows of 128 or 64 bytes, with the swizzle of that
// width. Throws Gpu.
CUtensorMap make_map(const void* data, DType dtype, int64_t rows, int64_t columns, int box_rows,
                     int box_row_bytes = 128);

// Map of heads [n_heads, rows, head_dim] F16, head_stride elements apart, in boxes of box_rows rows
// of 64 elements of one head, with the 128-byte swizzle. Throws Gpu.
CUtensorMap make_heads_map(const void* data, int64_t rows, int64_t n_heads, int64_t head_dim,
                           int64_t head_stride, int box_rows);

}  // namespace minfer::cuda
