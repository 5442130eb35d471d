#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/warpgroup.cuh"

// wgmma instructions (sm_90a); PTX ISA 8.x, "wgmma". b is in shared memory, a there or in
// registers. All 128 threads of the warpgroup call. Between wgmma_fence and wgmma_wait, the
// registers of d and a belong to the tensor cores.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
namespace minfer::cuda::ptx {

// The matrix descriptor of a tile with rows of 64 halves (128 bytes, with the 128-byte swizzle of
// TMA), 1024-byte aligned: groups of 8 rows lie 1024 bytes apart. Adding 2 advances it by 16
// columns.
__device__ inline uint64_t wgmma_tile(const void* tile) {
  return uint64_t((shared_address(tile) & 0x3FFFF) >> 4) | uint64_t{1} << 16 | uint64_t{64} << 32 |
         uint64_t{1} << 62;
}

// d (+)= a bT for a of 64 rows, b of 2 * size(d) rows, 16 columns of both. d[4 j + 2 h + i] of lane
// l of warp w is row 16 w + l / 4 + 8 h, column 8 j + 2 (l % 4) + i.
//
// With int8 codes, two take the place of a half: d (+)= a bT over 32 columns, the same number of
// bytes, in exact int32 sums.
//
// Arguments of the macros: the number n of accumulators; the columns of d; the numbers n + 1 and
// n + 2 of asm operands; the accumulators in the instruction's text; the same as asm operands.
#define MINFER_WGMMA_OF(T, Sum, kind, options, n, columns, n1, n2, list, sums)               \
  __device__ inline void wgmma(Sum(&d)[n], uint64_t a, uint64_t b, bool accumulate, T) {     \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #n2                                    \
                 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #columns kind " {" list "}, %" #n \
                 ", %" #n1 ", p" options ";\n}"                                              \
                 : sums                                                                      \
                 : "l"(a), "l"(b), "r"(int(accumulate)));                                    \
  }
#define MINFER_WGMMA(n, columns, n1, n2, list, sums)                                             \
  MINFER_WGMMA_OF(__half, float, "k16.f32.f16.f16", ", 1, 1, 0, 0", n, columns, n1, n2, list,    \
                  sums("+f"))                                                                    \
  MINFER_WGMMA_OF(__nv_bfloat16, float, "k16.f32.bf16.bf16", ", 1, 1, 0, 0", n, columns, n1, n2, \
                  list, sums("+f"))
// The same with the 64 rows of a in registers: those of warp w are the operand A of mma.m16n8k16.
// n1 to n5: the numbers n + 1 to n + 5 of asm operands.
#define MINFER_WGMMA_REGISTERS_OF(T, kind, n, columns, n1, n2, n3, n4, n5, list, sums)           \
  __device__ inline void wgmma(float(&d)[n], const uint32_t(&a)[4], uint64_t b, bool accumulate, \
                               T) {                                                              \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #n5                                        \
                 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #columns kind " {" list "}, {%" #n    \
                 ", %" #n1 ", %" #n2 ", %" #n3 "}, %" #n4 ", p, 1, 1, 0;\n}"                     \
                 : sums("+f")                                                                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(accumulate)));    \
  }
#define MINFER_WGMMA_REGISTERS(n, columns, n1, n2, n3, n4, n5, list, sums)                         \
  MINFER_WGMMA_REGISTERS_OF(__half, "k16.f32.f16.f16", n, columns, n1, n2, n3, n4, n5, list, sums) \
  MINFER_WGMMA_REGISTERS_OF(__nv_bfloat16, "k16.f32.bf16.bf16", n, columns, n1, n2, n3, n4, n5,    \
                            list, sums)
#define MINFER_WGMMA_INT8(n, columns, n1, n2, list, sums) \
  MINFER_WGMMA_OF(int8_t, int, "k32.s32.s8.s8", "", n, columns, n1, n2, list, sums("+r"))

// clang-format off
#define MINFER_L4(a, b, c, d) "%" #a ",%" #b ",%" #c ",%" #d
#define MINFER_R4(c, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define MINFER_L20 \
  MINFER_L4(0, 1, 2, 3) "," MINFER_L4(4, 5, 6, 7) "," MINFER_L4(8, 9, 10, 11) "," \
  MINFER_L4(12, 13, 14, 15) "," MINFER_L4(16, 17, 18, 19)
#define MINFER_R20(c) \
  MINFER_R4(c, 0), MINFER_R4(c, 4), MINFER_R4(c, 8), MINFER_R4(c, 12), MINFER_R4(c, 16)
#define MINFER_L36 \
  MINFER_L20 "," MINFER_L4(20, 21, 22, 23) "," MINFER_L4(24, 25, 26, 27) "," \
  MINFER_L4(28, 29, 30, 31) "," MINFER_L4(32, 33, 34, 35)
#define MINFER_R36(c) \
  MINFER_R20(c), MINFER_R4(c, 20), MINFER_R4(c, 24), MINFER_R4(c, 28), MINFER_R4(c, 32)
#define MINFER_L48 \
  MINFER_L36 "," MINFER_L4(36, 37, 38, 39) "," MINFER_L4(40, 41, 42, 43) "," \
  MINFER_L4(44, 45, 46, 47)
#define MINFER_R48(c) \
  MINFER_R36(c), MINFER_R4(c, 36), MINFER_R4(c, 40), MINFER_R4(c, 44)
#define MINFER_L52 \
  MINFER_L48 "," MINFER_L4(48, 49, 50, 51)
#define MINFER_R52(c) \
  MINFER_R48(c), MINFER_R4(c, 48)
#define MINFER_L64 \
  MINFER_L52 "," MINFER_L4(52, 53, 54, 55) "," MINFER_L4(56, 57, 58, 59) "," \
  MINFER_L4(60, 61, 62, 63)
#define MINFER_R64(c) \
  MINFER_R52(c), MINFER_R4(c, 52), MINFER_R4(c, 56), MINFER_R4(c, 60)
#define MINFER_L68 \
  MINFER_L64 "," MINFER_L4(64, 65, 66, 67)
#define MINFER_R68(c) \
  MINFER_R64(c), MINFER_R4(c, 64)
#define MINFER_L76 \
  MINFER_L68 "," MINFER_L4(68, 69, 70, 71) "," MINFER_L4(72, 73, 74, 75)
#define MINFER_R76(c) \
  MINFER_R68(c), MINFER_R4(c, 68), MINFER_R4(c, 72)
#define MINFER_L88 \
  MINFER_L76 "," MINFER_L4(76, 77, 78, 79) "," MINFER_L4(80, 81, 82, 83) "," \
  MINFER_L4(84, 85, 86, 87)
#define MINFER_R88(c) \
  MINFER_R76(c), MINFER_R4(c, 76), MINFER_R4(c, 80), MINFER_R4(c, 84)
#define MINFER_L96 \
  MINFER_L88 "," MINFER_L4(88, 89, 90, 91) "," MINFER_L4(92, 93, 94, 95)
#define MINFER_R96(c) \
  MINFER_R88(c), MINFER_R4(c, 88), MINFER_R4(c, 92)
#define MINFER_L100 \
  MINFER_L96 "," MINFER_L4(96, 97, 98, 99)
#define MINFER_R100(c) \
  MINFER_R96(c), MINFER_R4(c, 96)
#define MINFER_L112 \
  MINFER_L100 "," MINFER_L4(100, 101, 102, 103) "," MINFER_L4(104, 105, 106, 107) "," \
  MINFER_L4(108, 109, 110, 111)
#define MINFER_R112(c) \
  MINFER_R100(c), MINFER_R4(c, 100), MINFER_R4(c, 104), MINFER_R4(c, 108)
#define MINFER_L128 \
  MINFER_L112 "," MINFER_L4(112, 113, 114, 115) "," MINFER_L4(116, 117, 118, 119) "," \
  MINFER_L4(120, 121, 122, 123) "," MINFER_L4(124, 125, 126, 127)
#define MINFER_R128(c) \
  MINFER_R112(c), MINFER_R4(c, 112), MINFER_R4(c, 116), MINFER_R4(c, 120), MINFER_R4(c, 124)

MINFER_WGMMA(36, 72, 37, 38, MINFER_L36, MINFER_R36)
MINFER_WGMMA(48, 96, 49, 50, MINFER_L48, MINFER_R48)
MINFER_WGMMA(52, 104, 53, 54, MINFER_L52, MINFER_R52)
MINFER_WGMMA(64, 128, 65, 66, MINFER_L64, MINFER_R64)
MINFER_WGMMA(68, 136, 69, 70, MINFER_L68, MINFER_R68)
MINFER_WGMMA(76, 152, 77, 78, MINFER_L76, MINFER_R76)
MINFER_WGMMA(88, 176, 89, 90, MINFER_L88, MINFER_R88)
MINFER_WGMMA(96, 192, 97, 98, MINFER_L96, MINFER_R96)
MINFER_WGMMA(100, 200, 101, 102, MINFER_L100, MINFER_R100)
MINFER_WGMMA(112, 224, 113, 114, MINFER_L112, MINFER_R112)
MINFER_WGMMA(128, 256, 129, 130, MINFER_L128, MINFER_R128)
MINFER_WGMMA_INT8(64, 128, 65, 66, MINFER_L64, MINFER_R64)
MINFER_WGMMA_INT8(96, 192, 97, 98, MINFER_L96, MINFER_R96)
MINFER_WGMMA_INT8(128, 256, 129, 130, MINFER_L128, MINFER_R128)
MINFER_WGMMA_REGISTERS(36, 72, 37, 38, 39, 40, 41, MINFER_L36, MINFER_R36)
MINFER_WGMMA_REGISTERS(68, 136, 69, 70, 71, 72, 73, MINFER_L68, MINFER_R68)
// clang-format on

#undef MINFER_WGMMA
#undef MINFER_WGMMA_INT8
#undef MINFER_WGMMA_OF
#undef MINFER_WGMMA_REGISTERS
#undef MINFER_WGMMA_REGISTERS_OF
#undef MINFER_L4
#undef MINFER_R4
#undef MINFER_L20
#undef MINFER_R20
#undef MINFER_L36
#undef MINFER_R36
#undef MINFER_L48
#undef MINFER_R48
#undef MINFER_L52
#undef MINFER_R52
#undef MINFER_L64
#undef MINFER_R64
#undef MINFER_L68
#undef MINFER_R68
#undef MINFER_L76
#undef MINFER_R76
#undef MINFER_L88
#undef MINFER_R88
#undef MINFER_L96
#undef MINFER_R96
#undef MINFER_L100
#undef MINFER_R100
#undef MINFER_L112
#undef MINFER_R112
#undef MINFER_L128
#undef MINFER_R128

}  // namespace minfer::cuda::ptx
#endif
