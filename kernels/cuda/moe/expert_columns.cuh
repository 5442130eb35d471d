#pragma once

#include <cstdint>

// The order of columns in which wgmma multiplies packed codes. A lane has the codes of columns 4 t
// to 4 t + 3 of each 16 (quant/packed_layout.h), but the operand that it gives to the instruction
// is of columns 2 t, 2 t + 1, 2 t + 8 and 2 t + 9. So the other operand, x, is stored with its
// columns in the order that makes these the same: in each 16, first the even pairs of columns, then
// the odd ones ("fragment order").
namespace minfer::cuda {

// The half `which` of 16 columns in fragment order, from their two halves in order.
__device__ inline uint4 in_fragment_order(const uint4& low, const uint4& high, int which) {
  return which == 0 ? uint4{low.x, low.z, high.x, high.z} : uint4{low.y, low.w, high.y, high.w};
}

}  // namespace minfer::cuda
