#pragma once

#include "kernels/base/tensor.h"

namespace minfer::cpu {

// Rows of panels [panel_begin, panel_end) of host [out, in], of any DType, into the panels at
// `panels`, which hold `stored`: host's own dtype, F32 where that is quantized.
void pack_panels(void* panels, DType stored, const Tensor& host, int64_t panel_begin,
                 int64_t panel_end);

// out[i] = element [row, i] of panels with in_dim columns.
void unpack_row(float* out, const void* panels, DType stored, int64_t row, int64_t in_dim);

}  // namespace minfer::cpu
