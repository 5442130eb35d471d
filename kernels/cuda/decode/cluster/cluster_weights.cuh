#pragma once

#include "kernels/cuda/decode/cluster/cluster_params.h"
#include "kernels/cuda/ptx.cuh"

// Shared memory holds the block's tiles of all phases of a layer, and the weights of norms. As soon
// as the block has multiplied those of a phase, its last warp, which never has rows to publish,
// asks for those of the next layer, so that memory has almost a layer's time to bring them.
namespace minfer::cuda {

__host__ __device__ constexpr bool has_norm_in_cluster(int phase) {
  return phase == kClusterQkv || phase == kClusterGateUp;
}
// The barrier of a phase's weights, behind those of the vectors.
__device__ inline uint64_t* weights_barrier(const ClusterParams& p, uint8_t* shared, int phase) {
  return reinterpret_cast<uint64_t*>(shared + p.shared.barriers) + kClusterVectors + phase;
}

// Begins to copy the block's weights of a phase. One warp calls it; a lane asks for those of one
// matrix, which lie one after another, and one for the norm's.
template <int kPhase>
__device__ inline void load_weights(const ClusterParams& p, const ClusterLayer& layer,
                                    uint8_t* shared) {
  constexpr int kMatrices = kPhase == kClusterQkv ? 3 : kPhase == kClusterGateUp ? 2 : 1;
  constexpr int kFirst = kPhase == kClusterQkv      ? 0
                         : kPhase == kClusterWo     ? 3
                         : kPhase == kClusterGateUp ? 4
                                                    : 6;
  constexpr bool kInPairs = kPhase == kClusterGateUp;
  const ClusterGemv& gemv = p.gemvs[kPhase];
  const int lane = int(threadIdx.x) % 32, block = int(blockIdx.x);
  const int begin = gemv.begin(block, p.n_blocks), n = gemv.count(block, p.n_blocks);
  uint64_t* const barrier = weights_barrier(p, shared, kPhase);
  const int norm_bytes = has_norm_in_cluster(kPhase) ? 2 * gemv.in_dim : 0;
  if (lane == 0) {
    ptx::mbarrier_expect(barrier, (kInPairs ? 2 : 1) * n * gemv.tile_bytes() + norm_bytes);
  }
  __syncwarp();
  if (lane >= kMatrices) {
    if (lane == kMatrices && norm_bytes != 0) {
      ptx::bulk_copy(shared + gemv.norm_at,
                     kPhase == kClusterQkv ? layer.attn_norm : layer.ffn_norm, norm_bytes, barrier);
    }
    return;
  }
  // Its tiles of the lane's matrix, and the first of them in shared memory.
  const int first_of = kInPairs || lane == 0 ? 0 : gemv.ends[lane - 1];
  const int end_of = kInPairs ? gemv.n_tiles : gemv.ends[lane];
  const int from = max(begin, first_of), n_own = min(begin + n, end_of) - from;
  if (n_own <= 0) return;
  const int64_t tile = from - first_of;
  const int to = kInPairs ? lane * n : from - begin;
  const ClusterMatrix& w = layer.matrices[kFirst + lane];
  ptx::bulk_copy(shared + gemv.codes_at + to * gemv.code_bytes, w.codes + tile * gemv.code_bytes,
                 n_own * gemv.code_bytes, barrier);
  ptx::bulk_copy(shared + gemv.scales_at + to * gemv.scale_bytes,
                 w.scales + tile * gemv.scale_bytes, n_own * gemv.scale_bytes, barrier);
  if (gemv.min_bytes != 0) {
    ptx::bulk_copy(shared + gemv.mins_at + to * gemv.min_bytes, w.mins + tile * gemv.min_bytes,
                   n_own * gemv.min_bytes, barrier);
  }
}

}  // namespace minfer::cuda
