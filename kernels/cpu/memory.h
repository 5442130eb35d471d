#pragma once

#include "kernels/backend.h"

namespace minfer::cpu {

// Host memory for a tensor, not initialized; large ones are asked to lie in huge pages.
DeviceTensor allocate_tensor(DType dtype, const Shape& shape);

}  // namespace minfer::cpu
