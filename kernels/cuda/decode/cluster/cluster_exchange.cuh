#pragma once

#include "kernels/cuda/decode/cluster/cluster_params.h"
#include "kernels/cuda/ptx.cuh"

// How the blocks of the cluster exchange vectors. Each has a copy of every vector in its shared
// memory, and an mbarrier that counts its bytes: who computes a row stores it to all copies, and
// with it its bytes to all barriers.
//
// No copy is overwritten early: a block stores its rows of vector V of the next layer only when it
// has the whole of the outputs of the linear phases between, to each of which every block
// contributes after it has read V. And no barrier completes early: bytes may come before they are
// expected, but the arrival that comes with the expectation is missing until then.
namespace minfer::cuda {

class ClusterVectors {
 public:
  // shared: the block's shared memory. Thread 0 prepares the barriers; the cluster meets before the
  // first rows are sent.
  __device__ ClusterVectors(const ClusterParams& p, uint8_t* shared)
      : barriers_(ptx::shared_address(shared + p.shared.barriers)), n_blocks_(p.n_blocks) {
    const int lane = int(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int rank = lane % 4 + 4 * i;
      if (rank < n_blocks_) memory_of_[i] = ptx::shared_address_in(shared, rank);
    }
  }

  // Sends the values of each four lanes of a quad, in order, to element `element` of a vector in
  // all blocks, a multiple of 4. All lanes of a warp call it; a quad whose lanes say `has_rows`
  // sends.
  __device__ void send(const ClusterParams& p, ClusterVector vector, int element, float value,
                       bool has_rows) const {
    const int lane = int(threadIdx.x) % 32;
    float of_quad[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) of_quad[i] = __shfl_sync(~0u, value, (lane & ~3) + i);
    send_four(p, vector, element, of_quad, has_rows);
  }
  // The same of four values that all lanes of the quad have.
  __device__ void send_four(const ClusterParams& p, ClusterVector vector, int element,
                            const float (&values)[4], bool has_rows) const {
    const int lane = int(threadIdx.x) % 32, to = p.shared.vectors[vector] + 4 * element;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      ptx::store_to_block_if(has_rows && lane % 4 + 4 * i < n_blocks_, memory_of_[i] + to, values,
                             memory_of_[i] + p.shared.barriers + 8 * vector);
    }
  }

  // Waits for all rows of a vector of a layer. All lanes of a warp call it.
  __device__ void await(ClusterVector vector, int layer) const {
    const uint32_t barrier = barriers_ + 8 * vector;
    while (!__all_sync(~0u, ptx::mbarrier_is_complete_in_cluster(barrier, layer & 1))) {
      ptx::before_next_try();
    }
  }

 private:
  static constexpr int kOwn = kMostClusterBlocks / 4;  // blocks that a lane stores to

  uint32_t barriers_;
  int n_blocks_;
  uint32_t memory_of_[kOwn] = {};  // cluster-wide addresses
};

}  // namespace minfer::cuda
