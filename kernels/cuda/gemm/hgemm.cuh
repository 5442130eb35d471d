#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/gemm/heads.cuh"
#include "kernels/cuda/gemm/hgemm_out.cuh"
#include "kernels/cuda/gemm/wgmma.cuh"

namespace minfer::cuda {
// Sets the block's ring up, and waits for what the product is made of. n_readers: blocks that read
// what a slot holds, of one cluster.
template <typename Tile, typename Maps>
__device__ inline void begin_product(typename Tile::Shared& s, const Maps& maps,
                                     int n_readers = 1) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
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
#endif
}
// What each warpgroup says, by all its threads, when it has read a slot: to one block or, paired,
// to both that fill it.
__device__ inline void release_slot(uint64_t* empty, bool is_paired) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  const int thread = static_cast<int>(threadIdx.x) % 128;
  if (is_paired) {
    if (thread < 2) ptx::mbarrier_arrive_in(empty, thread);
  } else if (thread == 0) {
    ptx::mbarrier_arrive(empty);
  }
#endif
}
// The next slot of a ring, and the parity of its round.
template <int kStages>
__device__ inline void advance(int& slot, int& parity) {
  if (++slot == kStages) {
    slot = 0;
    parity ^= 1;
  }
}

// Adds up what the `split` blocks of a cluster have summed over a part of k each: of every kGroup
// sums of a thread those whose turn, one of kTurns that come again, is this block's. The ring is
// drained and there is no next tile: it takes the sums of all, d[j] of a thread at [j][thread].
template <int kWarpgroups, int kGroup, int kTurns, int kSums>
__device__ inline void add_parts_of_k(float (&d)[kSums], uint8_t* ring, int consumer, int split,
                                      int rank) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  ptx::named_barrier(1 + kWarpgroups, 128 * kWarpgroups);
  const int thread = static_cast<int>(threadIdx.x) % 128;
  auto* const partial = reinterpret_cast<float*>(ring) + consumer * 128 * kSums + thread;
#pragma unroll
  for (int j = 0; j < kSums; ++j) partial[j * 128] = d[j];
  ptx::cluster_barrier();
#pragma unroll
  for (int begin = 0; begin < kSums; begin += kGroup) {
    if (begin / kGroup % kTurns % split != rank) continue;
    const int end = min(begin + kGroup, kSums);
#pragma unroll
    for (int j = begin; j < end; ++j) d[j] = 0;
    for (int from = 0; from < split; ++from) {
      const uint32_t other = ptx::shared_address_in(partial + begin * 128, from);
#pragma unroll
      for (int j = begin; j < end; ++j) d[j] += ptx::load_cluster(other + (j - begin) * 128 * 4);
    }
  }
#endif
}

// out_i = epilogue(x w_iT + bias_i) for the parts i; see Epilogue, and for Heads GemmArgs::angles
//
//   x, w      [m, k], [n_i, k] T, rows of whole 16 bytes
//   out       [m, n_i] T or F32; of Heads k and v [n_i / kFusedHeadDim, .., kFusedHeadDim]
//   launch    persistent: a block takes every gridDim-th tile of kM x kN sums. Warpgroup 0 brings x
//             and w by TMA into a ring of kStages x 64 columns of k, 128-byte rows swizzled by 128
//             bytes; each other one multiplies kRowBlocks times 64 rows by wgmma, or only keeps
//             pace where all of its rows lie behind the last of x. Behind the last rows of x and
//             of w the ring holds what it held before: that makes sums which are not stored, and
//             no others. With is_paired the two blocks of a cluster have the same weights and
//             neighbouring rows of x; each brings half of the weights to both, and fills a slot
//             when both have read it. Where a block takes several tiles, one's sums leave while
//             the next one's are made (HgemmOut). With split > 1 the blocks of a cluster take a
//             part of k each, of one tile, and each finishes some of its columns
//   maths     f32 sums over k in order; with split, parts of k summed apart and then in order; one
//             rounding at the store. Accumulate by TMA adds each sum once: one rounding, one order
//   moves     2 (m k + n k) bytes and out; 2 m n k flops, by which it is bound
//   source    structure as in NVIDIA's CUTLASS, "warp-specialized persistent" kernels
template <typename T, typename Tile, HgemmKind kKind>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    hgemm_kernel(const __grid_constant__ HgemmMaps maps, const __grid_constant__ GemmArgs args,
                 const __grid_constant__ HgemmCut cut) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kN = Tile::kN, kStages = Tile::kStages, kWarpgroups = Tile::kWarpgroups;
  constexpr int kRowBlocks = Tile::kRowBlocks, kOut = Tile::template kOut<kKind>;
  constexpr bool kIsSwiGlu = kKind == HgemmKind::SwiGlu,
                 kCanSplit = Tile::template kCanSplit<kKind>,
                 kCanPair = Tile::template kCanPair<kKind>;
  static_assert(!Tile::template kOverlaps<kKind> || kIsSwiGlu,
                "what is stored twice must not be added");
  extern __shared__ __align__(1024) uint8_t raw[];
  auto& s = *reinterpret_cast<typename Tile::Shared*>(raw);
  const int warpgroup = ptx::warpgroup_index();
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int split = kCanSplit ? cut.split : 1;
  const bool is_paired = kCanPair && cut.is_paired;
  const int cluster = is_paired ? 2 : split, rank = cluster > 1 ? ptx::cluster_rank() : 0;

  begin_product<Tile>(s, maps, is_paired ? 2 : 1);

  const int n_tiles = cut.tiles_m * cut.tiles_n;
  const int first = static_cast<int>(blockIdx.x) / cluster;
  const int stride = static_cast<int>(gridDim.x) / cluster;
  const auto place_at = [&](int tile) {
    return place_of<Tile::kBand>(args, tile, stride, cut.tiles_m, cut.tiles_n, is_paired, rank);
  };
  const int k_steps = (args.k + kStepK - 1) / kStepK;
  const int part_of_k = split > 1 ? rank : 0;
  const int k_begin = k_steps * part_of_k / split, k_end = k_steps * (part_of_k + 1) / split;
  int slot = 0, parity = 0;
  const auto next_slot = [&] { advance<kStages>(slot, parity); };

  if (warpgroup == 0) {
    if constexpr (kWarpgroups == 2) ptx::shrink_registers<kRowBlocks == 2 ? 24 : 40>();
    if (thread == 0) {
      for (int tile = first; tile < n_tiles; tile += stride) {
        const GemmPlace place = place_at(tile);
        const int row = place.row_tile * Tile::kM, column = place.column_tile * kOut;
        // None is left for the second block of the last pair, where tiles are odd.
        const int rows_left = args.m - row, rows = max(0, min(Tile::kM, rows_left));
        const int columns = min(kOut, args.part[place.part].n - column);
        const CUtensorMap* const x_map = rows_left >= Tile::kM ? &maps.x : &maps.x_tail;
        const CUtensorMap* const w_maps = columns == kOut ? maps.w : maps.w_tail;
        // Half of a pair's weights may lie behind the last: its place keeps what it held before.
        const int halves = kIsSwiGlu || columns > kN / 2 ? 2 : 1;
        const int w_rows = is_paired ? halves * (kN / 2) : (kIsSwiGlu ? 2 : 1) * columns;
        const int n_bytes = (rows + w_rows) * kStepK * 2;
        for (int step = k_begin; step < k_end; ++step) {
          ptx::mbarrier_wait(s.empty + slot, parity ^ 1);
          ptx::mbarrier_expect(s.full + slot, n_bytes);
          if (rows_left > 0) {
            ptx::tensor_load(s.x[slot], x_map, s.full + slot, step * kStepK, row);
          }
          if (is_paired) {
            if (rank < halves) {
              ptx::tensor_load_to_both(s.w[slot] + rank * (Tile::kWBytes / 2),
                                       maps.w + (kIsSwiGlu ? rank : place.part), s.full + slot,
                                       step * kStepK, column + (kIsSwiGlu ? 0 : rank * (kN / 2)));
            }
          } else if constexpr (kIsSwiGlu) {
            ptx::tensor_load(s.w[slot], w_maps, s.full + slot, step * kStepK, column);
            ptx::tensor_load(s.w[slot] + Tile::kWBytes / 2, w_maps + 1, s.full + slot,
                             step * kStepK, column);
          } else {
            ptx::tensor_load(s.w[slot], w_maps + place.part, s.full + slot, step * kStepK, column);
          }
          next_slot();
        }
      }
    }
    __syncwarp();
    if (split > 1) ptx::cluster_barrier();  // as often as the others
    if (cluster > 1) ptx::cluster_barrier();
    return;
  }

  if constexpr (kWarpgroups == 2) ptx::grow_registers<kRowBlocks == 2 ? 240 : 232>();
  const int consumer = warpgroup - 1, warp = thread / 32, lane = thread % 32;
  const auto release = [&](int read_slot) { release_slot(s.empty + read_slot, is_paired); };
  HgemmOut<T, Tile, kKind> out(maps, args, cut, s.staging[consumer], 1 + consumer, part_of_k);
  const bool holds = Tile::template kHeldBoxes<kKind> > 0 && cut.holds;
  float d[kRowBlocks][kN / 2];
  for (int tile = first; tile < n_tiles; tile += stride) {
    const GemmPlace place = place_at(tile);
    const GemmArgs::Part& part = args.part[place.part];
    const int first_row = place.row_tile * Tile::kM + consumer * 64 * kRowBlocks;
    const int column = place.column_tile * kOut;

    // Without rows only keeps pace with the ring: nothing else keeps its warps together, and one
    // that is two rounds late would wait forever.
    if (first_row >= args.m) {
      if (holds) out.send_all_held();
      for (int step = k_begin; step < k_end; ++step) {
        ptx::mbarrier_wait(s.full + slot, parity);
        ptx::named_barrier(1 + consumer, 128);
        release(slot);
        next_slot();
      }
      if (split == 1) continue;
    }
    int previous = -1;
    const auto multiply = [&](int step) {
      ptx::mbarrier_wait(s.full + slot, parity);
      const uint64_t x_tile = ptx::wgmma_tile(s.x[slot] + consumer * 64 * kRowBlocks * kStepK * 2);
      const uint64_t w_tile = ptx::wgmma_tile(s.w[slot]);
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < kStepK / 16; ++i) {
#pragma unroll
        for (int b = 0; b < kRowBlocks; ++b) {  // 8 KB apart
          ptx::wgmma(d[b], x_tile + b * 512 + 2 * i, w_tile + 2 * i, step > k_begin || i > 0, T{});
        }
      }
      ptx::wgmma_commit();
    };
    const auto release_previous = [&] {
      ptx::wgmma_wait<1>();  // one step stays under way; the one before it has read its slot
      if (previous >= 0) release(previous);
      previous = slot;
      next_slot();
    };
    int step = first_row < args.m ? k_begin : k_end;
    if (holds) {  // nothing, in front of the first tile
#pragma unroll
      for (int box = 0; box < out.kHeldBoxes; ++box) {
        multiply(step++);
        out.send_held(box);
        release_previous();
      }
    }
    for (; step < k_end; ++step) {
      multiply(step);
      release_previous();
    }
    using Angles = std::conditional_t<kKind == HgemmKind::Heads, HeadAngles, NoAngles>;
    const Angles angles(args, first_row + warp * 16 + lane / 4);
    ptx::wgmma_wait<0>();
    if (previous >= 0) release(previous);

    // SwiGlu has its gates in the lower half of d.
    if constexpr (kCanSplit) {
      if (split > 1) {
        // Block b of the columns of out is finished by rank b % split.
        add_parts_of_k<kWarpgroups, 32, kOut / 64>(d[0], raw, consumer, split, rank);
      }
    }

    // Biases in front of all else, so that no branch stands between one sum and the next: the
    // functions of many sums then run side by side.
    const auto add_bias = [&]<int kFirst>(const GemmArgs::Part& of) {
      if (of.bias == nullptr) return;
#pragma unroll
      for (int j = 0; j < kOut / 2; j += 4) {
        const int at = column + j * 2 + lane % 4 * 2;
        const float left = bias_at<T>(of, at), right = bias_at<T>(of, at + 1);
#pragma unroll
        for (int b = 0; b < kRowBlocks; ++b) {
          d[b][kFirst + j] += left;
          d[b][kFirst + j + 1] += right;
          d[b][kFirst + j + 2] += left;
          d[b][kFirst + j + 3] += right;
        }
      }
    };
    if constexpr (kKind == HgemmKind::Heads) round_sums<T>(d[0]);
    add_bias.template operator()<0>(part);
    if constexpr (kIsSwiGlu) add_bias.template operator()<kOut / 2>(args.part[1]);

    if constexpr (kKind == HgemmKind::Gelu) {
      // One copy of the code for all sums, as it is long: fetching instructions would take the
      // time. What is done goes to the end; at last all are in place again.
      constexpr int kSums = kN / 2, kAtOnce = kSums % 32 == 0 ? 32 : 16;
#pragma unroll 1
      for (int i = 0; i < kSums; i += kAtOnce) {
        float some[kAtOnce];
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) some[j] = d[0][j];
        activate(some, args.epilogue);
#pragma unroll
        for (int j = 0; j < kSums - kAtOnce; ++j) d[0][j] = d[0][j + kAtOnce];
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) d[0][kSums - kAtOnce + j] = some[j];
      }
    }

    if constexpr (kKind == HgemmKind::Heads) {
      static_assert(kRowBlocks == 1);
      if (part.bias != nullptr) round_sums<T>(d[0]);
      if (place.part < 2) angles.rotate(d[0]);
    }

#pragma unroll
    for (int b = 0; b < kRowBlocks; ++b) {
      if constexpr (kIsSwiGlu) {
#pragma unroll
        for (int j = 0; j < kOut / 2; ++j) d[b][j] = silu(d[b][j]) * d[b][kOut / 2 + j];
      }
      // Heads have no registers for both ways out.
      if (kKind == HgemmKind::Heads || (holds && b + 1 == kRowBlocks)) {
        out.hold(d[b], place.part, first_row + b * 64, column);
        if (!holds) out.send_all_held();
      } else {
        out.store(d[b], place.part, first_row + b * 64, column);
      }
    }
    ptx::named_barrier(1 + consumer, 128);  // see ptx::warpgroup_index
  }
  if (holds) out.send_all_held();
  if (thread == 0) ptx::bulk_wait<0>();
  // Others may still read this block's partial sums, or write here.
  if (cluster > 1) ptx::cluster_barrier();
#endif
}

}  // namespace minfer::cuda
