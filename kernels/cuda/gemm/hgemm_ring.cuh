#pragma once

#include <cstdint>

#include "kernels/cuda/gemm/epilogue.cuh"
#include "kernels/cuda/gemm/hgemm_tile.cuh"
#include "kernels/cuda/gemm/tma.cuh"

// What hgemm's kernels have in common (sm_90a): a block's slice of the work, the ring of stages
// between producer and consumers, and the reduction of split-K.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
namespace minfer::cuda {

// A block's slice of the work: every stride-th tile from first_tile on, and of each tile the K
// steps [k_begin, k_end), which are kStepK columns each.
struct BlockSlice {
  int first_tile, n_tiles, stride;
  int k_begin, k_end;
  int split, k_split;  // split-K: the number of slices of k, and which slice this block has
  bool is_paired;
  int n_blocks, rank;  // blocks of the cluster, and which of them this is

  // Cluster barriers: when partial sums are exchanged, and at the end, because other blocks may
  // read or write in this block until then. All threads of the cluster call.
  __device__ void meet_for_sums() const {
    if (split > 1) ptx::cluster_barrier();
  }
  __device__ void meet_at_end() const {
    if (n_blocks > 1) ptx::cluster_barrier();
  }
};
template <bool kCanSplit, bool kCanPair>
__device__ inline BlockSlice slice_of_block(const GemmArgs& args, const HgemmCut& cut) {
  BlockSlice slice{};
  slice.split = kCanSplit ? cut.split : 1;
  slice.is_paired = kCanPair && cut.is_paired;
  slice.n_blocks = slice.is_paired ? 2 : slice.split;
  slice.rank = slice.n_blocks > 1 ? ptx::cluster_rank() : 0;
  slice.first_tile = static_cast<int>(blockIdx.x) / slice.n_blocks;
  slice.stride = static_cast<int>(gridDim.x) / slice.n_blocks;
  slice.n_tiles = cut.tiles_m * cut.tiles_n;
  slice.k_split = slice.split > 1 ? slice.rank : 0;
  const int k_steps = (args.k + kStepK - 1) / kStepK;
  slice.k_begin = k_steps * slice.k_split / slice.split;
  slice.k_end = k_steps * (slice.k_split + 1) / slice.split;
  return slice;
}

// Where a tile lies. With paired blocks, cut.tiles_m counts pairs of row tiles, and each block has
// one of the pair.
template <int kBand>
__device__ inline GemmPlace place_of(const GemmArgs& args, const HgemmCut& cut,
                                     const BlockSlice& slice, int tile) {
  if (!slice.is_paired) return place_of<kBand>(args, tile, slice.stride, cut.tiles_m, cut.tiles_n);
  GemmPlace place = place_of<kBand / 2>(args, tile, slice.stride, cut.tiles_m, cut.tiles_n);
  place.row_tile = place.row_tile * 2 + slice.rank;
  return place;
}

// The place of the producer or of a consumer in the ring, whose stages it goes through in order.
template <typename Tile>
class RingPlace {
 public:
  __device__ explicit RingPlace(typename Tile::Shared& ring) : s_(ring) {}

  __device__ int slot() const { return slot_; }
  __device__ uint64_t* full() const { return s_.full + slot_; }
  __device__ void wait_until_read() const { ptx::mbarrier_wait(s_.empty + slot_, parity_ ^ 1); }
  __device__ void wait_until_full() const { ptx::mbarrier_wait(s_.full + slot_, parity_); }
  __device__ void advance() {
    if (++slot_ == Tile::kStages) {
      slot_ = 0;
      parity_ ^= 1;  // of the phase that the barriers are in
    }
  }
  // A consumer warpgroup signals that it has read a stage: to its own producer or, if paired, to
  // both. All of its threads call.
  __device__ void release(int slot, bool is_paired) const {
    const int thread = static_cast<int>(threadIdx.x) % 128;
    if (is_paired) {
      if (thread < 2) ptx::mbarrier_arrive_in(s_.empty + slot, thread);
    } else if (thread == 0) {
      ptx::mbarrier_arrive(s_.empty + slot);
    }
  }
  // Goes through the stages of a tile of which this warpgroup has no rows, or no columns. The
  // barrier keeps its warps together: nothing else does, and a warp that is two rounds late would
  // misread the parity and wait forever.
  __device__ void skip(const BlockSlice& slice, int barrier) {
    for (int step = slice.k_begin; step < slice.k_end; ++step) {
      wait_until_full();
      ptx::named_barrier(barrier, 128);
      release(slot_, slice.is_paired);
      advance();
    }
  }

 private:
  typename Tile::Shared& s_;
  int slot_ = 0, parity_ = 0;
};

// Initializes the ring's barriers, and waits for the kernels that wrote x and w (PDL).
template <typename Tile, typename Maps>
__device__ inline void begin_gemm(typename Tile::Shared& s, const Maps& maps,
                                  const BlockSlice& slice) {
  const int n_readers = slice.is_paired ? 2 : 1;  // blocks that read what this block loads
  if (threadIdx.x == 0) {
    for (int i = 0; i < Tile::kStages; ++i) {
      ptx::mbarrier_init(s.full + i, 1);
      ptx::mbarrier_init(s.empty + i, n_readers * Tile::kWarpgroups);
    }
    ptx::mbarrier_init_fence();
    ptx::prefetch_tensor_map(&maps.x);
    ptx::prefetch_tensor_map(&maps.w[0]);
  }
  __syncthreads();
  if (n_readers > 1) ptx::cluster_barrier();  // the other block's barriers are initialized too
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
}

// The second consumer of a tile with GELU begins half a ring behind the first, and stays there
// (gelu_lags).
template <typename Tile>
__device__ inline void begin_behind(typename Tile::Shared& s, int consumer,
                                    const BlockSlice& slice) {
  constexpr int kLag = Tile::kStages / 2;
  if (consumer == 1 && slice.k_end - slice.k_begin > kLag) ptx::mbarrier_wait(s.full + kLag, 0);
}

// The reduction of split-K: adds the partial sums of the cluster's blocks. A thread's accumulators
// form groups of kGroup, which are numbered 0 to kTurns - 1 and again from 0; this block adds up
// the groups whose number modulo split is its rank. The partial sums go to the ring, d[j] of a
// thread at [j][thread]: the ring is drained, and there is no next tile.
template <int kWarpgroups, int kGroup, int kTurns, int kSums>
__device__ inline void reduce_split_k(float (&d)[kSums], uint8_t* ring, int consumer,
                                      const BlockSlice& slice) {
  ptx::named_barrier(1 + kWarpgroups, 128 * kWarpgroups);
  const int thread = static_cast<int>(threadIdx.x) % 128;
  auto* const partial = reinterpret_cast<float*>(ring) + consumer * 128 * kSums + thread;
#pragma unroll
  for (int j = 0; j < kSums; ++j) partial[j * 128] = d[j];
  slice.meet_for_sums();
#pragma unroll
  for (int begin = 0; begin < kSums; begin += kGroup) {
    if (begin / kGroup % kTurns % slice.split != slice.rank) continue;
    const int end = min(begin + kGroup, kSums);
#pragma unroll
    for (int j = begin; j < end; ++j) d[j] = 0;
    for (int from = 0; from < slice.split; ++from) {
      const uint32_t other = ptx::shared_address_in(partial + begin * 128, from);
#pragma unroll
      for (int j = begin; j < end; ++j) d[j] += ptx::load_cluster(other + (j - begin) * 128 * 4);
    }
  }
}

}  // namespace minfer::cuda
#endif
