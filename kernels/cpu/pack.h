#pragma once

#include "kernels/base/tensor.h"

namespace minfer::cpu {

// Packs sixteen rows of host [out, in], of a float type, into one panel of `panels` [n_panels, in,
// kPanel], of the same type.
void pack_panel(const Tensor& panels, const Tensor& host, int64_t panel);

// out[i] = element [row, i] of panels with in_dim columns.
void unpack_row(float* out, const Tensor& panels, int64_t row, int64_t in_dim);

}  // namespace minfer::cpu
