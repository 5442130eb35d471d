#pragma once

#include "kernels/base/dtype.h"

namespace minfer {

// out[i] = the value of element i of a row of n elements stored as dtype; what a format means is
// defined here and nowhere else.
//
//   in    n elements in whole blocks, as in the file; no alignment needed
//   maths f32, each product and sum rounded once, in the order that ggml uses: equal bits
void dequantize_row(float* out, const void* in, DType dtype, int64_t n);

}  // namespace minfer
