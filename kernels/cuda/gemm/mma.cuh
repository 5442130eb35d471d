#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/ptx.cuh"

// mma instructions of a warp, with operands in registers (sm_80); PTX ISA 8.x, "mma.m16n8k16". Lane
// l holds
//   a  rows l / 4 and l / 4 + 8, columns 2 (l % 4) + {0, 1} and 8 more: a[0] and a[1] are the first
//      8 columns of both rows, a[2] and a[3] the others
//   b  row l / 4 (a column of d), columns 2 (l % 4) + {0, 1} of both halves of k
//   d  rows l / 4 (d[0], d[1]) and l / 4 + 8 (d[2], d[3]), columns 2 (l % 4) + {0, 1}
namespace minfer::cuda::ptx {

// Copies 16 bytes, or writes zeros if `is_there` is false; then `from` is any valid address.
__device__ inline void copy_async_16_or_zero(void* to_shared, const void* from, bool is_there) {
  asm volatile(
      "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(to_shared)),
      "l"(from), "r"(is_there ? 16 : 0)
      : "memory");
}

// d += a bT
__device__ inline void multiply_16x8x16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                        uint32_t b1, __half) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ inline void multiply_16x8x16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                        uint32_t b1, __nv_bfloat16) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace minfer::cuda::ptx
