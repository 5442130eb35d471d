#pragma once

#include "kernels/backend.h"

namespace minfer::cpu {

// Host memory for a tensor, not initialized. For large tensors it asks for huge pages.
DeviceTensor allocate_tensor(DType dtype, const Shape& shape);

}  // namespace minfer::cpu
