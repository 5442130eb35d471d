#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

// Each function is one instruction, or nearly so, and is named after what it does; PTX ISA 8.x
// manual.
namespace minfer::cuda::ptx {

__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// The block's dynamic shared memory, aligned by default to 1024 bytes, the period of the 128-byte
// swizzle.
template <int kAlignment = 1024>
__device__ inline uint8_t* dynamic_shared() {
  extern __shared__ __align__(kAlignment) uint8_t raw[];
  return raw;
}
// A T in the block's static shared memory, the same one for every call with this type.
template <typename T>
__device__ inline T& static_shared() {
  __shared__ T memory;
  return memory;
}

// Reads threadIdx.x anew each time. Otherwise the compiler keeps what it computes from it
// (addresses, above all) in registers through a long loop.
__device__ inline int read_thread_index() {
  int index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  __builtin_assume(index >= 0 && index < 1024);  // so that / and % are a shift and a mask
  return index;
}
// The warp's index in its block, from a shuffle: so the compiler knows that all lanes have the same
// one. Behind a branch that depends on threadIdx.x / 32 it would take the lanes of a warp for
// divergent: docs/lab/decode-2026-11.md, "Lanes that leave together".
__device__ inline int warp_index() { return __shfl_sync(~0u, int(threadIdx.x) / 32, 0); }
// The SM's clock; it starts again at 0 after 2^32.
__device__ inline uint32_t read_clock() {
  uint32_t now;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(now));
  return now;
}
// A clock in nanoseconds.
__device__ inline uint64_t global_timer() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}
// Stands between two tries of a loop that waits for other threads. It does nothing on a card; in
// the tests' emulator it lets other threads run.
__device__ inline void before_next_try() {}
// The bits of x in a register of their own: a copy that the compiler must make.
__device__ inline uint32_t copied_bits(float x) {
  uint32_t bits;
  asm volatile("mov.b32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
}

// (word & kMask) | pattern in one instruction, which has room for one constant.
template <uint32_t kMask>
__device__ inline uint32_t mask_or(uint32_t word, uint32_t pattern) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(result) : "r"(word), "n"(kMask), "r"(pattern));
  return result;
}
// ~(word & kMask), in one instruction, where the compiler takes two.
template <uint32_t kMask>
__device__ inline uint32_t inverted_and(uint32_t word) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, 0, 0x3F;" : "=r"(result) : "r"(word), "n"(kMask));
  return result;
}

// Byte i of a word, 0 to 3, as a signed number, in one instruction: from shifts and a cast the
// compiler makes two or three.
__device__ inline int signed_byte(uint32_t word, int i) {
  int byte;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(byte) : "r"(word), "r"(0x8880 + 0x1111 * i));
  return byte;
}

// sum, plus the signed halves of `halves` times two signed bytes of a word: its lower ones, or its
// upper ones.
template <bool kUpper>
__device__ inline int dot_of_two(uint32_t halves, uint32_t word, int sum) {
  int result;
  if constexpr (kUpper) {
    asm("dp2a.hi.s32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(halves), "r"(word), "r"(sum));
  } else {
    asm("dp2a.lo.s32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(halves), "r"(word), "r"(sum));
  }
  return result;
}

// The larger one, or NaN if one is NaN, which fmaxf would ignore.
__device__ inline float max_or_nan(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}

// Rounds to the nearest integer in -128 ... 127, ties to even; NaN becomes 0.
__device__ inline int round_to_s8(float x) {
  int rounded;
  asm("cvt.rni.s8.f32 %0, %1;" : "=r"(rounded) : "f"(x));
  return rounded;
}

// 2^x within 2 ulp; 0 for -inf. Here and below, subnormal numbers count as 0.
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// 1 / x within 1 ulp; 0 for infinities and if |x| > 2^126.
__device__ inline float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// ---- programmatic dependent launch (PDL); see launch.h -----------------------------------------

__device__ inline void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ inline void let_successor_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- global memory ---------------------------------------------------------------------

// Loads four floats that no kernel in flight writes. The compiler does not move the load.
__device__ inline float4 load_read_only(const float4* from) {
  float4 x;
  asm volatile("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "l"(from));
  return x;
}
// Loads 16 bytes past L1 if `loads`, else zeros. It has a predicate instead of a branch.
__device__ inline uint4 load_16_or_zero(bool loads, const void* from) {
  uint4 x{};
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "+r"(x.x), "+r"(x.y), "+r"(x.z), "+r"(x.w)
      : "l"(from), "r"(int(loads))
      : "memory");
  return x;
}
// Flagged words of 16 bytes, which blocks exchange while they run. Each is read and written as a
// whole (sm_90). This loads from[kAt]; the offset is an immediate of the instruction.
template <int kAt = 0>
__device__ inline void load_word(uint64_t& low, uint64_t& high, const uint4* from) {
  asm volatile(
      "{\n.reg .b128 w;\nld.relaxed.gpu.global.b128 w, [%2 + %3];\nmov.b128 {%0, %1}, w;\n}"
      : "=l"(low), "=l"(high)
      : "l"(from), "n"(kAt * 16)
      : "memory");
}
// The same if `reads` is not 0, else it leaves the word as it is. It has a predicate instead of a
// branch.
template <int kAt>
__device__ inline void load_word_if(uint32_t reads, uint64_t& low, uint64_t& high,
                                    const uint4* from) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b128 w;\nsetp.ne.u32 p, %4, 0;\nmov.b128 w, {%0, %1};\n"
      "@p ld.relaxed.gpu.global.b128 w, [%2 + %3];\nmov.b128 {%0, %1}, w;\n}"
      : "+l"(low), "+l"(high)
      : "l"(from), "n"(kAt * 16), "r"(reads)
      : "memory");
}
__device__ inline void store_word(uint4* to, uint64_t low, uint64_t high) {
  asm volatile(
      "{\n.reg .b128 w;\nmov.b128 w, {%1, %2};\nst.relaxed.gpu.global.b128 [%0], w;\n}" ::"l"(to),
      "l"(low), "l"(high)
      : "memory");
}
// The same for words that are written from another card, in the memory of the one that reads.
__device__ inline void load_word_of_peer(uint64_t& low, uint64_t& high, const uint4* from) {
  asm volatile("{\n.reg .b128 w;\nld.relaxed.sys.global.b128 w, [%2];\nmov.b128 {%0, %1}, w;\n}"
               : "=l"(low), "=l"(high)
               : "l"(from)
               : "memory");
}
__device__ inline void store_word_to_peer(uint4* to, uint64_t low, uint64_t high) {
  asm volatile(
      "{\n.reg .b128 w;\nmov.b128 w, {%1, %2};\nst.relaxed.sys.global.b128 [%0], w;\n}" ::"l"(to),
      "l"(low), "l"(high)
      : "memory");
}
// Adds 1 to a counter in another card's memory (release). A thread that reads the new value by
// load_from_peer (acquire) also sees everything that this block wrote before its last barrier.
__device__ inline void count_arrival_at_peer(uint32_t* counter) {
  asm volatile("red.release.sys.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}
__device__ inline uint32_t load_from_peer(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
// Prefetches n_bytes to L2, a multiple of 16 from a 16-byte aligned address (sm_90; below,
// nothing).
__device__ inline void prefetch_l2(const void* from, int n_bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(n_bytes) : "memory");
#endif
}
// Adds 1 and returns the old value. If a barrier of the block precedes the call, blocks that add
// later see what this block wrote; if one follows it, this block sees what earlier ones wrote.
__device__ inline unsigned count_arrival(unsigned* counter) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  return before;
}

// ---- cp.async: copies to shared memory that each thread issues and waits for (sm_80) -----------

// The destination is a shared address, because adding offsets to one costs nothing.
__device__ inline void copy_async_16(uint32_t to_shared, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to_shared), "l"(from)
               : "memory");
}
// Copies the first n_bytes (0 or 16) of the 16 bytes, and fills the rest with zeros.
__device__ inline void copy_async_16(uint32_t to_shared, const void* from, int n_bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to_shared), "l"(from),
               "r"(n_bytes)
               : "memory");
}
// The same for 8 bytes, and for 4.
__device__ inline void copy_async_8(uint32_t to_shared, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to_shared), "l"(from) : "memory");
}
__device__ inline void copy_async_4(uint32_t to_shared, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to_shared), "l"(from) : "memory");
}
__device__ inline void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most kPending groups of this thread are in flight.
template <int kPending>
__device__ inline void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Four 8x8 matrices of 16-bit elements from rows of 16 bytes: lane i gives the shared address of
// row i % 8 of matrix i / 8, and lane 4 g + t gets elements 2t, 2t + 1 of row g of each.
__device__ inline void load_matrices(uint32_t (&m)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(row)
               : "memory");
}
// The same, transposed: rows 2t, 2t + 1 of column g.
__device__ inline void load_matrices_transposed(uint32_t (&m)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(row)
               : "memory");
}

// ---- mma instructions of a warp, 16 x 8 x 16, f32 accumulators: d += a b -----------------------

// What lane (g, t) = (lane / 4, lane % 4) holds: a0 is row g, columns 2t and 2t + 1 of a; a1 the
// same of row g + 8; a2 and a3 the same at columns 2t + 8 and 2t + 9. b0 and b1 are column g of b,
// rows 2t, 2t + 1 and rows 2t + 8, 2t + 9. d is rows g, g, g + 8, g + 8 at columns 2t, 2t + 1, 2t,
// 2t + 1.
template <typename T>
__device__ inline void mma_m16n8k16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                    uint32_t a3, uint32_t b0, uint32_t b1);
template <>
__device__ inline void mma_m16n8k16<__half>(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                            uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
template <>
__device__ inline void mma_m16n8k16<__nv_bfloat16>(float (&d)[4], uint32_t a0, uint32_t a1,
                                                   uint32_t a2, uint32_t a3, uint32_t b0,
                                                   uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The same for 8-bit integers, 16 x 8 x 32, with exact int32 sums: d = a b + c; with kUnsigned, a
// is unsigned. A register holds four columns, from 4t or from 4t + 16 on.
template <bool kUnsigned>
__device__ inline void mma_m16n8k32(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                    const int (&c)[4]) {
  if constexpr (kUnsigned) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%10, %11, %12, %13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]),
          "r"(c[2]), "r"(c[3]));
  } else {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%10, %11, %12, %13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]),
          "r"(c[2]), "r"(c[3]));
  }
}

// The same, 16 x 8 x 16, of signed a or, with kUnsigned, unsigned. A register holds four columns,
// from 4t on.
template <bool kUnsigned>
__device__ inline void mma_m16n8k16(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t b,
                                    const int (&c)[4]) {
  if constexpr (kUnsigned) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%7, %8, %9, %10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a0), "r"(a1), "r"(b), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%7, %8, %9, %10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a0), "r"(a1), "r"(b), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
  }
}

// ---- barriers of some of a block's threads ------------------------------------------------------

// Barrier kId, 1 to 15, of kThreads threads.
template <int kId, int kThreads>
__device__ inline void named_barrier() {
  asm volatile("bar.sync %0, %1;" ::"n"(kId), "n"(kThreads) : "memory");
}

// ---- mbarriers: barriers in shared memory that also count bytes (sm_90) ------------------------

__device__ inline void mbarrier_init(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}
// Makes initialized barriers visible to TMA. The thread that initialized them calls it once.
__device__ inline void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void mbarrier_expect(uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
__device__ inline void mbarrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// The same, when all cp.async copies that this thread has started are complete.
__device__ inline void copy_async_arrive(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier))
               : "memory");
}
// Returns when the phase of that parity has completed.
__device__ inline void mbarrier_wait(uint64_t* barrier, int parity) {
  asm volatile(
      "{\n.reg .pred p;\nW: mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n"
      "@p bra D;\nbra W;\nD:\n}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// Whether the phase of that parity has completed. `barrier` is a shared address.
__device__ inline bool mbarrier_is_complete(uint32_t barrier, int parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, "
      "p;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}
// Whether `is_so`, or else the phase of that parity has completed.
__device__ inline int mbarrier_is_complete_or(int is_so, uint32_t barrier, int parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\n"
      "@!p mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity), "r"(is_so)
      : "memory");
  return int(done);
}
// Stores at an address in shared memory, which other warps may poll, without a branch.
__device__ inline void store_shared_if(bool stores, uint32_t to, int x) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p st.volatile.shared.s32 [%0], %1;\n}" ::"r"(to),
      "r"(x), "r"(int(stores))
      : "memory");
}
__device__ inline void mbarrier_arrive_if(bool condition, uint32_t barrier) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %1, 0;\n@p mbarrier.arrive.shared.b64 _, [%0];\n}" ::"r"(
          barrier),
      "r"(int(condition))
      : "memory");
}

// ---- clusters (sm_90) ---------------------------------------------------------------------------

// Waits for all threads of the cluster, whose earlier writes to shared memory are then visible.
__device__ inline void cluster_barrier() {
  asm volatile(
      "barrier.cluster.arrive.release;\n"
      "barrier.cluster.wait.acquire;" ::
          : "memory");
}
// The cluster-wide address of the same place in the shared memory of block `rank`.
__device__ inline uint32_t shared_address_in(const void* p, int rank) {
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(address)
               : "r"(shared_address(p)), "r"(rank));
  return address;
}
// Stores four floats to the shared memory of a block, at a cluster-wide address, if `stores`; the
// mbarrier in that block counts their 16 bytes. It has a predicate instead of a branch.
__device__ inline void store_to_block_if(bool stores, uint32_t to, const float (&x)[4],
                                         uint32_t barrier) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %6, 0;\n"
      "@p st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, "
      "%4}, "
      "[%5];\n}" ::"r"(to),
      "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"(barrier), "r"(int(stores))
      : "memory");
}
// mbarrier_is_complete, after which the thread sees what other blocks of the cluster have stored;
// the thread may sleep for a while before it answers.
__device__ inline bool mbarrier_is_complete_in_cluster(uint32_t barrier, int parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

// ---- bulk copies (sm_90) ------------------------------------------------------------------------

// Copies n_bytes, a multiple of 16 at 16-byte aligned addresses, to shared memory; the mbarrier
// counts them.
__device__ inline void bulk_copy(void* to_shared, const void* from, int n_bytes,
                                 uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to_shared)),
      "l"(from), "r"(n_bytes), "r"(shared_address(barrier))
      : "memory");
}

// The L2 policy for data that is read once: L2 evicts it first.
__device__ inline uint64_t evict_first_policy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
// The same with a policy for L2.
__device__ inline void bulk_copy(void* to_shared, const void* from, int n_bytes, uint64_t* barrier,
                                 uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to_shared)),
      "l"(from), "r"(n_bytes), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}

}  // namespace minfer::cuda::ptx
