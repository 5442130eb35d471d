#pragma once

#include <cstdint>

#include "kernels/cuda/gemm/epilogue.cuh"
#include "kernels/cuda/gemm/hgemm_tile.cuh"
#include "kernels/cuda/gemm/tma.cuh"

// What the blocks of hgemm's kernels share (sm_90a): who multiplies what, the ring that one
// warpgroup fills and the others read, and the sum over the blocks that have a part of k each.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
namespace minfer::cuda {

// What a block has to do: of every stride-th tile from first_tile on, the steps of kStepK columns
// of k from k_begin to k_end.
struct BlockShare {
  int first_tile, n_tiles, stride;
  int k_begin, k_end;
  int split, part_of_k;  // blocks that have a part of k each, and which part is this block's
  bool is_paired;
  int n_blocks, rank;  // of the cluster, and which of them this is

  // All threads of the cluster meet: where partial sums are exchanged, and at the end, as others
  // may read here, or write, until then.
  __device__ void meet_for_sums() const {
    if (split > 1) ptx::cluster_barrier();
  }
  __device__ void meet_at_end() const {
    if (n_blocks > 1) ptx::cluster_barrier();
  }
};
template <bool kCanSplit, bool kCanPair>
__device__ inline BlockShare share_of_block(const GemmArgs& args, const HgemmCut& cut) {
  BlockShare share{};
  share.split = kCanSplit ? cut.split : 1;
  share.is_paired = kCanPair && cut.is_paired;
  share.n_blocks = share.is_paired ? 2 : share.split;
  share.rank = share.n_blocks > 1 ? ptx::cluster_rank() : 0;
  share.first_tile = static_cast<int>(blockIdx.x) / share.n_blocks;
  share.stride = static_cast<int>(gridDim.x) / share.n_blocks;
  share.n_tiles = cut.tiles_m * cut.tiles_n;
  share.part_of_k = share.split > 1 ? share.rank : 0;
  const int k_steps = (args.k + kStepK - 1) / kStepK;
  share.k_begin = k_steps * share.part_of_k / share.split;
  share.k_end = k_steps * (share.part_of_k + 1) / share.split;
  return share;
}

// Where a tile lies. Where blocks are paired tiles_m counts pairs of blocks of rows, and each block
// has one of the two.
template <int kBand>
__device__ inline GemmPlace place_of(const GemmArgs& args, const HgemmCut& cut,
                                     const BlockShare& share, int tile) {
  if (!share.is_paired) return place_of<kBand>(args, tile, share.stride, cut.tiles_m, cut.tiles_n);
  GemmPlace place = place_of<kBand / 2>(args, tile, share.stride, cut.tiles_m, cut.tiles_n);
  place.row_tile = place.row_tile * 2 + share.rank;
  return place;
}

// The slots of the ring in turn, as those who fill it go through them, and those who read it.
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
      parity_ ^= 1;  // of the round
    }
  }
  // What each warpgroup says, by all its threads, when it has read a slot: to one block or, paired,
  // to both that fill it.
  __device__ void release(int slot, bool is_paired) const {
    const int thread = static_cast<int>(threadIdx.x) % 128;
    if (is_paired) {
      if (thread < 2) ptx::mbarrier_arrive_in(s_.empty + slot, thread);
    } else if (thread == 0) {
      ptx::mbarrier_arrive(s_.empty + slot);
    }
  }
  // The turns of a warpgroup that has no rows, or columns, of a tile, and only keeps pace with the
  // ring: nothing else keeps its warps together, and one that is two rounds late would wait
  // forever.
  __device__ void skip(const BlockShare& share, int barrier) {
    for (int step = share.k_begin; step < share.k_end; ++step) {
      wait_until_full();
      ptx::named_barrier(barrier, 128);
      release(slot_, share.is_paired);
      advance();
    }
  }

 private:
  typename Tile::Shared& s_;
  int slot_ = 0, parity_ = 0;
};

// Sets the block's ring up, and waits for what the product is made of.
template <typename Tile, typename Maps>
__device__ inline void begin_product(typename Tile::Shared& s, const Maps& maps,
                                     const BlockShare& share) {
  const int n_readers = share.is_paired ? 2 : 1;  // blocks that read what a slot holds
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
  if (n_readers > 1) ptx::cluster_barrier();  // the other block's barriers too
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
}

// Adds up what the blocks of a cluster have summed over a part of k each: of every kGroup sums of a
// thread those whose turn, one of kTurns that come again, is this block's. The ring is drained and
// there is no next tile: it takes the sums of all, d[j] of a thread at [j][thread].
template <int kWarpgroups, int kGroup, int kTurns, int kSums>
__device__ inline void add_parts_of_k(float (&d)[kSums], uint8_t* ring, int consumer,
                                      const BlockShare& share) {
  ptx::named_barrier(1 + kWarpgroups, 128 * kWarpgroups);
  const int thread = static_cast<int>(threadIdx.x) % 128;
  auto* const partial = reinterpret_cast<float*>(ring) + consumer * 128 * kSums + thread;
#pragma unroll
  for (int j = 0; j < kSums; ++j) partial[j * 128] = d[j];
  share.meet_for_sums();
#pragma unroll
  for (int begin = 0; begin < kSums; begin += kGroup) {
    if (begin / kGroup % kTurns % share.split != share.rank) continue;
    const int end = min(begin + kGroup, kSums);
#pragma unroll
    for (int j = begin; j < end; ++j) d[j] = 0;
    for (int from = 0; from < share.split; ++from) {
      const uint32_t other = ptx::shared_address_in(partial + begin * 128, from);
#pragma unroll
      for (int j = begin; j < end; ++j) d[j] += ptx::load_cluster(other + (j - begin) * 128 * 4);
    }
  }
}

}  // namespace minfer::cuda
#endif
