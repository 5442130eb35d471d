#pragma once

#include <cuda_fp16.h>

#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/warpgroup.cuh"

// The instructions of the attention kernels that are not in ptx.cuh, each as a function; PTX ISA
// 8.x.
namespace minfer::cuda::attention {

// ---- mma of a warp (sm_80) ----------------------------------------------------------------------

// d[16, 8] += a[16, 16] b[16, 8]; lane 4 g + t holds
//   a  (row g, k 2t..), (row g + 8, k 2t..), (row g, k 2t + 8..), (row g + 8, k 2t + 8..)
//   b  (k 2t.., column g), (k 2t + 8.., column g)
//   d  (row g, columns 2t, 2t + 1), (row g + 8, columns 2t, 2t + 1)
__device__ inline void mma_16x8x16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                   uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Transposes an 8x8 matrix of halves in registers: lane 4 g + t has elements 2t, 2t + 1 of row g.
__device__ inline uint32_t transpose_matrix(uint32_t m) {
  uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(m));
  return out;
}

__device__ inline uint32_t bits_of(__half2 x) { return *reinterpret_cast<const uint32_t*>(&x); }
__device__ inline uint32_t pack_halves(float low, float high) {
  return bits_of(__floats2half2_rn(low, high));
}

// ---- mma of a warpgroup, TMA copies (sm_90a) ----------------------------------------------------
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Starts a TMA copy of a box of a 3-D tensor to shared memory. What is out of range becomes zero,
// and counts as bytes all the same.
__device__ inline void copy_box(void* to_shared, const CUtensorMap* map, uint64_t* barrier, int x,
                                int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%3, %4, %5}], [%2];" ::"r"(ptx::shared_address(to_shared)),
      "l"(map), "r"(ptx::shared_address(barrier)), "r"(x), "r"(y), "r"(z)
      : "memory");
}

// Makes this thread's stores to shared memory visible to wgmma.
__device__ inline void fence_for_wgmma() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Keeps the computation of the weights, which `weights_sum` adds up, in front of the wait for wgmma
// that follows. Without it the compiler puts that wait first, and the weights are computed after
// the wgmma instead of beside it. A store keeps its place; this one depends on all weights and
// stores nothing, since their sum is not negative.
__device__ inline void keep_in_front(float weights_sum, const void* shared) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.lt.f32 p, %0, 0f00000000;\n@p st.shared.u32 [%1], %2;\n}" ::"f"(
          weights_sum),
      "r"(ptx::shared_address(shared)), "r"(0)
      : "memory");
}

// Descriptor of an operand in shared memory: rows of 128 bytes with the 128-byte swizzle, groups of
// 8 rows 1024 bytes apart. `lead`: bytes from one block of 64 elements to the next if the
// contiguous dim is not the summed one.
__device__ inline uint64_t operand(const void* p, uint32_t lead = 16) {
  return uint64_t{(ptx::shared_address(p) & 0x3FFFF) >> 4} | uint64_t{lead >> 4} << 16 |
         uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

#define MINFER_R8(d, i)                                                                       \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define MINFER_R32(d) MINFER_R8(d, 0), MINFER_R8(d, 8), MINFER_R8(d, 16), MINFER_R8(d, 24)
#define MINFER_R48(d) MINFER_R32(d), MINFER_R8(d, 32), MINFER_R8(d, 40)
#define MINFER_R64(d) MINFER_R48(d), MINFER_R8(d, 48), MINFER_R8(d, 56)
#define MINFER_D32                                                                     \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22," \
  "%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define MINFER_D48 MINFER_D32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define MINFER_D64 MINFER_D48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

// d[64, 128] (+)= a[64, 16] b[128, 16] transposed, both in shared memory.
__device__ inline void wgmma_scores(float (&d)[64], uint64_t a, uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" MINFER_D64
      "}, %64, %65, p, 1, 1, 0, 0;\n}\n"
      : MINFER_R64(d)
      : "l"(a), "l"(b), "r"(accumulate));
}

// d[64, n] += a[64, 16] b[16, n]: a in registers, b in shared memory with n contiguous.
__device__ inline void wgmma_values(float (&d)[32], const uint32_t* a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" MINFER_D32
               "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;\n"
               : MINFER_R32(d)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ inline void wgmma_values(float (&d)[48], const uint32_t* a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n96k16.f32.f16.f16 {" MINFER_D48
               "}, {%48, %49, %50, %51}, %52, 1, 1, 1, 1;\n"
               : MINFER_R48(d)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ inline void wgmma_values(float (&d)[64], const uint32_t* a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" MINFER_D64
               "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;\n"
               : MINFER_R64(d)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// Named barrier `id` (1 to 15) of kThreads threads in all, those that wait and those that do not.
template <int kThreads>
__device__ inline void barrier_sync(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}
template <int kThreads>
__device__ inline void barrier_arrive(int id) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}

#endif

}  // namespace minfer::cuda::attention
