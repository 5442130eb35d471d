#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/warpgroup.cuh"

// Products of a warpgroup with both operands in shared memory (sm_90a); PTX ISA 8.x, "wgmma". All
// 128 threads call. Between wgmma_fence and wgmma_wait the registers of d belong to the tensor
// cores.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
namespace minfer::cuda::ptx {

// Describes a tile of rows of 64 halves (128 bytes, swizzled by 128 bytes as TMA does), 1024-byte
// aligned: groups of 8 rows lie 1024 bytes apart. Adding 2 moves on by 16 columns.
__device__ inline uint64_t wgmma_tile(const void* tile) {
  return uint64_t((shared_address(tile) & 0x3FFFF) >> 4) | uint64_t{1} << 16 | uint64_t{64} << 32 |
         uint64_t{1} << 62;
}

// d (+)= a bT for a of 64 rows, b of 2 * size(d) rows, 16 columns of both. d[4 j + 2 h + i] of lane
// l of warp w is row 16 w + l / 4 + 8 h, column 8 j + 2 (l % 4) + i.
#define MINFER_R8(i)                                                                          \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define MINFER_R64(i)                                                                      \
  MINFER_R8(i), MINFER_R8(i + 8), MINFER_R8(i + 16), MINFER_R8(i + 24), MINFER_R8(i + 32), \
      MINFER_R8(i + 40), MINFER_R8(i + 48), MINFER_R8(i + 56)

// clang-format off
#define MINFER_D96 \
"%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
"%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
"%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
// clang-format on
__device__ inline void wgmma(float (&d)[48], uint64_t a, uint64_t b, bool accumulate, __half) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %50, "
      "0;\nwgmma.mma_async.sync.aligned.m64n96k16.f32.f16.f16 {" MINFER_D96
      "}, %48, %49, p, 1, 1, 0, 0;\n}"
      : MINFER_R8(0), MINFER_R8(8), MINFER_R8(16), MINFER_R8(24), MINFER_R8(32), MINFER_R8(40)
      : "l"(a), "l"(b), "r"(int(accumulate)));
}
__device__ inline void wgmma(float (&d)[48], uint64_t a, uint64_t b, bool accumulate,
                             __nv_bfloat16) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %50, "
      "0;\nwgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {" MINFER_D96
      "}, %48, %49, p, 1, 1, 0, 0;\n}"
      : MINFER_R8(0), MINFER_R8(8), MINFER_R8(16), MINFER_R8(24), MINFER_R8(32), MINFER_R8(40)
      : "l"(a), "l"(b), "r"(int(accumulate)));
}
#undef MINFER_D96

// clang-format off
#define MINFER_D128 \
"%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
"%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
"%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
"%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
// clang-format on
__device__ inline void wgmma(float (&d)[64], uint64_t a, uint64_t b, bool accumulate, __half) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, "
      "0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" MINFER_D128
      "}, %64, %65, p, 1, 1, 0, 0;\n}"
      : MINFER_R64(0)
      : "l"(a), "l"(b), "r"(int(accumulate)));
}
__device__ inline void wgmma(float (&d)[64], uint64_t a, uint64_t b, bool accumulate,
                             __nv_bfloat16) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, "
      "0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" MINFER_D128
      "}, %64, %65, p, 1, 1, 0, 0;\n}"
      : MINFER_R64(0)
      : "l"(a), "l"(b), "r"(int(accumulate)));
}
#undef MINFER_D128

// clang-format off
#define MINFER_D176 \
"%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
"%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
"%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
"%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63," \
"%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79," \
"%80,%81,%82,%83,%84,%85,%86,%87"
// clang-format on
__device__ inline void wgmma(float (&d)[88], uint64_t a, uint64_t b, bool accumulate, __half) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %90, "
      "0;\nwgmma.mma_async.sync.aligned.m64n176k16.f32.f16.f16 {" MINFER_D176
      "}, %88, %89, p, 1, 1, 0, 0;\n}"
      : MINFER_R64(0), MINFER_R8(64), MINFER_R8(72), MINFER_R8(80)
      : "l"(a), "l"(b), "r"(int(accumulate)));
}
__device__ inline void wgmma(float (&d)[88], uint64_t a, uint64_t b, bool accumulate,
                             __nv_bfloat16) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %90, "
      "0;\nwgmma.mma_async.sync.aligned.m64n176k16.f32.bf16.bf16 {" MINFER_D176
      "}, %88, %89, p, 1, 1, 0, 0;\n}"
      : MINFER_R64(0), MINFER_R8(64), MINFER_R8(72), MINFER_R8(80)
      : "l"(a), "l"(b), "r"(int(accumulate)));
}
#undef MINFER_D176

// clang-format off
#define MINFER_D192 \
"%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
"%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
"%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
"%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63," \
"%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79," \
"%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
// clang-format on
__device__ inline void wgmma(float (&d)[96], uint64_t a, uint64_t b, bool accumulate, __half) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %98, "
      "0;\nwgmma.mma_async.sync.aligned.m64n192k16.f32.f16.f16 {" MINFER_D192
      "}, %96, %97, p, 1, 1, 0, 0;\n}"
      : MINFER_R64(0), MINFER_R8(64), MINFER_R8(72), MINFER_R8(80), MINFER_R8(88)
      : "l"(a), "l"(b), "r"(int(accumulate)));
}
__device__ inline void wgmma(float (&d)[96], uint64_t a, uint64_t b, bool accumulate,
                             __nv_bfloat16) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %98, "
      "0;\nwgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {" MINFER_D192
      "}, %96, %97, p, 1, 1, 0, 0;\n}"
      : MINFER_R64(0), MINFER_R8(64), MINFER_R8(72), MINFER_R8(80), MINFER_R8(88)
      : "l"(a), "l"(b), "r"(int(accumulate)));
}
#undef MINFER_D192

// clang-format off
#define MINFER_D224 \
"%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
"%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
"%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
"%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63," \
"%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79," \
"%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95," \
"%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
// clang-format on
__device__ inline void wgmma(float (&d)[112], uint64_t a, uint64_t b, bool accumulate, __half) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %114, "
      "0;\nwgmma.mma_async.sync.aligned.m64n224k16.f32.f16.f16 {" MINFER_D224
      "}, %112, %113, p, 1, 1, 0, 0;\n}"
      : MINFER_R64(0), MINFER_R8(64), MINFER_R8(72), MINFER_R8(80), MINFER_R8(88), MINFER_R8(96),
        MINFER_R8(104)
      : "l"(a), "l"(b), "r"(int(accumulate)));
}
__device__ inline void wgmma(float (&d)[112], uint64_t a, uint64_t b, bool accumulate,
                             __nv_bfloat16) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %114, "
      "0;\nwgmma.mma_async.sync.aligned.m64n224k16.f32.bf16.bf16 {" MINFER_D224
      "}, %112, %113, p, 1, 1, 0, 0;\n}"
      : MINFER_R64(0), MINFER_R8(64), MINFER_R8(72), MINFER_R8(80), MINFER_R8(88), MINFER_R8(96),
        MINFER_R8(104)
      : "l"(a), "l"(b), "r"(int(accumulate)));
}
#undef MINFER_D224

// clang-format off
#define MINFER_D256 \
"%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
"%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
"%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
"%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63," \
"%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79," \
"%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95," \
"%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111," \
"%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
// clang-format on
__device__ inline void wgmma(float (&d)[128], uint64_t a, uint64_t b, bool accumulate, __half) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %130, "
      "0;\nwgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {" MINFER_D256
      "}, %128, %129, p, 1, 1, 0, 0;\n}"
      : MINFER_R64(0), MINFER_R64(64)
      : "l"(a), "l"(b), "r"(int(accumulate)));
}
__device__ inline void wgmma(float (&d)[128], uint64_t a, uint64_t b, bool accumulate,
                             __nv_bfloat16) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %130, "
      "0;\nwgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" MINFER_D256
      "}, %128, %129, p, 1, 1, 0, 0;\n}"
      : MINFER_R64(0), MINFER_R64(64)
      : "l"(a), "l"(b), "r"(int(accumulate)));
}
#undef MINFER_D256

#undef MINFER_R8
#undef MINFER_R64

}  // namespace minfer::cuda::ptx
#endif
