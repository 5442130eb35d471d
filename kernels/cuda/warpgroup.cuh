#pragma once

// What warpgroups of 128 threads do around wgmma (sm_90a): the order of products and registers, and
// the register budget of each; PTX ISA 8.x, "wgmma" and "setmaxnreg". All 128 threads call. Between
// wgmma_fence and wgmma_wait the registers of the sums belong to the tensor cores.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
namespace minfer::cuda::ptx {

// Which of the block's warpgroups this is, as the compiler sees that a warp has but one answer:
// what wgmma reads is then described in uniform registers, by one instruction a warp and not one a
// lane. In a loop the compiler sees that only if a barrier of the warpgroup follows what its lanes
// do apart, as the stores at the end of a tile.
__device__ inline int warpgroup_index() {
  return __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
}

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most kPending groups are under way.
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Registers of each thread of the calling warpgroup from here on.
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
