#pragma once

#include <cuda.h>

#include <cstdint>

// One instruction a function, named after what it does; PTX ISA 8.x manual.
namespace minfer::cuda::ptx {

__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// ---- programmatic dependent launch; see launch.h -----------------------------------------------

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

// ---- copies of 16 bytes to shared memory, by each thread for itself (sm_80) --------------------

__device__ inline void copy_async_16(void* to_shared, const void* from) {
  asm volatile(
      "cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared_address(to_shared)),
      "l"(from)
      : "memory");
}
__device__ inline void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most kPending groups of this thread are under way.
template <int kPending>
__device__ inline void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// ---- barriers in shared memory that also count bytes (sm_90) -----------------------------------

__device__ inline void mbarrier_init(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}
// Makes initialized barriers visible to the copy engine; once, by the thread that made them.
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
// Returns when the phase of that parity has completed.
__device__ inline void mbarrier_wait(uint64_t* barrier, int parity) {
  asm volatile(
      "{\n.reg .pred p;\nW: mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n"
      "@p bra D;\nbra W;\nD:\n}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// ---- the copy engine (sm_90) --------------------------------------------------------------------

// n_bytes, a multiple of 16, aligned to 16, to shared memory; the barrier counts them.
__device__ inline void bulk_copy(void* to_shared, const void* from, int n_bytes,
                                 uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(to_shared)),
      "l"(from), "r"(n_bytes), "r"(shared_address(barrier))
      : "memory");
}

}  // namespace minfer::cuda::ptx
