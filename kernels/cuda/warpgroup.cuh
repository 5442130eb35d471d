#pragma once

// What warpgroups of 128 threads do around wgmma (sm_90a): they order accesses to registers, wait,
// and set their register budgets; PTX ISA 8.x, "wgmma" and "setmaxnreg". All 128 threads call.
// Between wgmma_fence and wgmma_wait, the accumulators belong to the tensor cores.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
namespace minfer::cuda::ptx {

// The index of this warpgroup in the block, in a form that the compiler knows to be uniform in a
// warp: it then computes the descriptors of wgmma in uniform registers, once per warp instead of
// once per lane. In a loop, it knows so only if a barrier of the warpgroup follows code in which
// lanes diverge, such as the stores at the end of a tile.
__device__ inline int warpgroup_index() {
  return __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
}

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most kPending groups are in flight.
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Sets the registers of each thread of the calling warpgroup from here on.
template <int kCount>
__device__ inline void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ inline void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

}  // namespace minfer::cuda::ptx
#endif
