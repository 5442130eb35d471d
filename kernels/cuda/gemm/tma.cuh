#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/ptx.cuh"

// TMA copies of boxes of a tensor, named barriers, stmatrix and clusters (sm_90a); PTX ISA 8.x
// manual. Coordinates: x is the column, y the row, z the head. Elements outside the tensor are read
// as zeros and not written.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
namespace minfer::cuda::ptx {

__device__ inline void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
__device__ inline void tensor_load(void* to_shared, const CUtensorMap* map, uint64_t* barrier,
                                   int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(to_shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y)
      : "memory");
}
// The L2 policy of a load: evict_last keeps its data longer than all other data.
__device__ inline uint64_t l2_policy(bool keeps) {
  uint64_t policy;
  if (keeps) {
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  } else {
    asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  }
  return policy;
}
__device__ inline void tensor_load(void* to_shared, const CUtensorMap* map, uint64_t* barrier,
                                   int x, int y, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(to_shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "l"(policy)
      : "memory");
}
// The same to this address in both blocks of a cluster of two (multicast). In each block, the
// mbarrier at this address counts the bytes.
__device__ inline void tensor_load_to_both(void* to_shared, const CUtensorMap* map,
                                           uint64_t* barrier, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(to_shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "h"(uint16_t{3})
      : "memory");
}
__device__ inline void tensor_store(const CUtensorMap* map, const void* shared, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
      "r"(shared_address(shared)), "r"(x), "r"(y)
      : "memory");
}
__device__ inline void tensor_store(const CUtensorMap* map, const void* shared, int x, int y,
                                    int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
      "r"(shared_address(shared)), "r"(x), "r"(y), "r"(z)
      : "memory");
}
// Adds to the elements in global memory, in f32, rounding to nearest.
__device__ inline void tensor_add(const CUtensorMap* map, const void* shared, int x, int y) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group "
      "[%0, {%2, %3}], [%1];" ::"l"(map),
      "r"(shared_address(shared)), "r"(x), "r"(y)
      : "memory");
}
__device__ inline void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until at most kPending groups of this thread still read shared memory.
template <int kPending>
__device__ inline void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
template <int kPending>
__device__ inline void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}
// Makes this thread's writes to shared memory visible to TMA.
__device__ inline void fence_for_copy_engine() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Waits at named barrier `id` (1 to 15) for n_threads threads, which are whole warps.
__device__ inline void named_barrier(int id, int n_threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n_threads) : "memory");
}

// Stores four 8 x 8 matrices of halves; lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void store_matrix_x4(void* row, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(shared_address(row)),
      "r"(a), "r"(b), "r"(c), "r"(d)
      : "memory");
}
// Stores two of them, transposed; lane l < 16 gives the address of column l % 8 of matrix l / 8.
__device__ inline void store_matrix_x2_transposed(void* row, uint32_t a, uint32_t b) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1,%2};" ::"r"(shared_address(row)),
      "r"(a), "r"(b)
      : "memory");
}

__device__ inline int cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return int(rank);
}
// Arrives at the mbarrier at the same place in block `rank` of the cluster. It signals that this
// thread has finished reading; publishing its writes would take a fence of cluster scope.
__device__ inline void mbarrier_arrive_in(uint64_t* barrier, int rank) {
  asm volatile(
      "mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(shared_address_in(barrier, rank))
      : "memory");
}
__device__ inline float load_cluster(uint32_t address) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}

}  // namespace minfer::cuda::ptx
#endif
