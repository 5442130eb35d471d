#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/gemm/float_sums.cuh"
#include "kernels/cuda/gemm/heads.cuh"
#include "kernels/cuda/gemm/hgemm_out.cuh"
#include "kernels/cuda/gemm/hgemm_ring.cuh"
#include "kernels/cuda/gemm/wgmma.cuh"

namespace minfer::cuda {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// Brings the tiles of x and w of all tiles of out that the block has; by one thread. A pair goes
// through k forwards and backwards in turns, as L2, which does not hold all that its tiles under
// way read, still has the columns of x where the tile before ended. Others have a loop of their
// own, without a policy for L2: a thread that gives one with each load takes some 100 clocks a step
// more, and is too slow for tiles of 128 x 128 and less.
template <typename Tile, HgemmKind kKind>
__device__ inline void bring_tiles(typename Tile::Shared& s, const HgemmMaps& maps,
                                   const GemmArgs& args, const HgemmCut& cut,
                                   const BlockShare& share) {
  constexpr int kM = Tile::kM, kN = Tile::kN, kOut = Tile::template kOut<kKind>;
  constexpr bool kIsSwiGlu = kKind == HgemmKind::SwiGlu;
  const uint64_t x_policy = ptx::l2_policy(cut.keeps_x);
  RingPlace<Tile> ring(s);
  bool is_backwards = false;
  for (int tile = share.first_tile; tile < share.n_tiles; tile += share.stride) {
    const GemmPlace place = place_of<Tile::kBand>(args, cut, share, tile);
    const int row = place.row_tile * kM, column = place.column_tile * kOut;
    // None is left for the second block of the last pair, where tiles are odd.
    const int rows_left = args.m - row, rows = max(0, min(kM, rows_left));
    const int columns = min(kOut, args.part[place.part].n - column);
    const CUtensorMap* const x_map = rows_left >= kM ? &maps.x : &maps.x_tail;
    const CUtensorMap* const w_maps = columns == kOut ? maps.w : maps.w_tail;
    // Half of a pair's weights may lie behind the last: its place keeps what it held before.
    const int halves = kIsSwiGlu || columns > kN / 2 ? 2 : 1;
    const int w_rows = share.is_paired ? halves * (kN / 2) : (kIsSwiGlu ? 2 : 1) * columns;
    const int n_bytes = (rows + w_rows) * kStepK * 2;
    const auto bring = [&](auto is_paired) {
      for (int step = share.k_begin; step < share.k_end; ++step) {
        ring.wait_until_read();
        ptx::mbarrier_expect(ring.full(), n_bytes);
        uint8_t *const x = s.x[ring.slot()], *const w = s.w[ring.slot()];
        if constexpr (decltype(is_paired)::value) {
          const int at = (is_backwards ? share.k_begin + share.k_end - 1 - step : step) * kStepK;
          const int half = share.rank;
          if (rows_left > 0) ptx::tensor_load(x, x_map, ring.full(), at, row, x_policy);
          if (half < halves) {
            ptx::tensor_load_to_both(w + half * (Tile::kWBytes / 2),
                                     maps.w + (kIsSwiGlu ? half : place.part), ring.full(), at,
                                     column + (kIsSwiGlu ? 0 : half * (kN / 2)));
          }
        } else {
          const int at = step * kStepK;
          ptx::tensor_load(x, x_map, ring.full(), at, row);
          ptx::tensor_load(w, w_maps + (kIsSwiGlu ? 0 : place.part), ring.full(), at, column);
          if constexpr (kIsSwiGlu) {
            ptx::tensor_load(w + Tile::kWBytes / 2, w_maps + 1, ring.full(), at, column);
          }
        }
        ring.advance();
      }
    };
    share.is_paired ? bring(std::true_type()) : bring(std::false_type());
    is_backwards = share.is_paired && !is_backwards;
  }
}

// Adds a part's biases to the sums of each block of rows from kFirst on, of columns from `column`.
template <typename T, int kOut, int kFirst, int kRowBlocks, int kSums>
__device__ inline void add_biases(float (&d)[kRowBlocks][kSums], const GemmArgs::Part& part,
                                  int column) {
  if (part.bias == nullptr) return;
#pragma unroll
  for (int j = 0; j < kOut / 2; j += 4) {
    const int at = column + j * 2 + static_cast<int>(threadIdx.x) % 4 * 2;
    const float left = bias_at<T>(part, at), right = bias_at<T>(part, at + 1);
#pragma unroll
    for (int b = 0; b < kRowBlocks; ++b) {
      d[b][kFirst + j] += left;
      d[b][kFirst + j + 1] += right;
      d[b][kFirst + j + 2] += left;
      d[b][kFirst + j + 3] += right;
    }
  }
}

// One copy of GELU's code for all sums, as it is long: fetching instructions would take the time.
// What is done goes to the end; at last all are in place again.
template <int kSums>
__device__ inline void activate_in_turns(float (&d)[kSums], Epilogue epilogue) {
  constexpr int kAtOnce = kSums % 32 == 0 ? 32 : 16;
#pragma unroll 1
  for (int i = 0; i < kSums; i += kAtOnce) {
    float some[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) some[j] = d[j];
    activate(some, epilogue);
#pragma unroll
    for (int j = 0; j < kSums - kAtOnce; ++j) d[j] = d[j + kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) d[kSums - kAtOnce + j] = some[j];
  }
}
#endif

// out_i = epilogue(x w_iT + bias_i) for the parts i; see Epilogue, and for Heads GemmArgs::angles
//
//   x, w      [m, k], [n_i, k] Operand, rows of whole 16 bytes: T, or codes int8_t with scales
//             [m], [n_i] F32, of which k and "columns of k" below count pairs
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
//   maths     f32 sums over k in order, backwards in every second tile of a pair; with split, parts
//             of k summed apart and then in order; one rounding at the store. Of codes int32 sums,
//             exact, rounded to f32 and times the scale of the row and that of the column.
//             Accumulate by TMA adds each sum once: one rounding, one order
//   moves     2 (m k + n k) bytes and out; 2 m n k flops, by which it is bound, of codes 4 m n k
//   source    structure as in NVIDIA's CUTLASS, "warp-specialized persistent" kernels
template <typename T, typename Tile, HgemmKind kKind, typename Operand = T>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    hgemm_kernel(const __grid_constant__ HgemmMaps maps, const __grid_constant__ GemmArgs args,
                 const __grid_constant__ HgemmCut cut) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kN = Tile::kN, kRowBlocks = Tile::kRowBlocks, kOut = Tile::template kOut<kKind>;
  constexpr bool kIsSwiGlu = kKind == HgemmKind::SwiGlu,
                 kCanSplit = Tile::template kCanSplit<kKind>;
  static_assert(!Tile::template kOverlaps<kKind> || kIsSwiGlu,
                "what is stored twice must not be added");
  uint8_t* const raw = ptx::dynamic_shared();
  auto& s = *reinterpret_cast<typename Tile::Shared*>(raw);
  const int warpgroup = ptx::warpgroup_index();
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const BlockShare share = share_of_block<kCanSplit, Tile::template kCanPair<kKind>>(args, cut);
  begin_product<Tile>(s, maps, share);

  if (warpgroup == 0) {
    if constexpr (Tile::kWarpgroups == 2) ptx::shrink_registers<kRowBlocks == 2 ? 24 : 40>();
    if (thread == 0) bring_tiles<Tile, kKind>(s, maps, args, cut, share);
    __syncwarp();
    share.meet_for_sums();
    share.meet_at_end();
    return;
  }

  if constexpr (Tile::kWarpgroups == 2) ptx::grow_registers<kRowBlocks == 2 ? 240 : 232>();
  const int consumer = warpgroup - 1, warp = thread / 32, lane = thread % 32;
  RingPlace<Tile> ring(s);
  HgemmOut<T, Tile, kKind> out(maps, args, cut, s.staging[consumer], 1 + consumer, share.part_of_k);
  const bool holds = Tile::template kHeldBoxes<kKind> > 0 && cut.holds;
  FloatSums<Operand, Tile, kKind> floats(s, args, consumer);
  for (int tile = share.first_tile; tile < share.n_tiles; tile += share.stride) {
    const GemmPlace place = place_of<Tile::kBand>(args, cut, share, tile);
    const GemmArgs::Part& part = args.part[place.part];
    const int first_row = place.row_tile * Tile::kM + consumer * 64 * kRowBlocks;
    const int column = place.column_tile * kOut;
    const bool has_rows = first_row < args.m;
    if (!has_rows) {
      if (holds) out.send_all_held();
      ring.skip(share, 1 + consumer);
      if (share.split == 1) continue;
    }
    typename decltype(floats)::Sum sums[kRowBlocks][kN / 2];
    floats.begin(sums, place.part, first_row, column);
    int previous = -1;
    const auto multiply = [&](int step) {
      ring.wait_until_full();
      const int slot = ring.slot();
      const uint64_t x_tile = ptx::wgmma_tile(s.x[slot] + consumer * 64 * kRowBlocks * kStepK * 2);
      const uint64_t w_tile = ptx::wgmma_tile(s.w[slot]);
      ptx::wgmma_fence();
#pragma unroll
      for (int b = 0; b < kRowBlocks; ++b) {  // 8 KB apart; what adds to the same sums together
#pragma unroll
        for (int i = 0; i < kStepK / 16; ++i) {
          ptx::wgmma(sums[b], x_tile + b * 512 + 2 * i, w_tile + 2 * i,
                     step > share.k_begin || i > 0, Operand{});
        }
      }
      ptx::wgmma_commit();
    };
    const auto release_previous = [&] {
      ptx::wgmma_wait<1>();  // one step stays under way; the one before it has read its slot
      if (previous >= 0) ring.release(previous, share.is_paired);
      previous = ring.slot();
      ring.advance();
    };
    int step = has_rows ? share.k_begin : share.k_end;
    if (holds) {  // nothing, in front of the first tile
#pragma unroll
      for (int box = 0; box < out.kHeldBoxes; ++box) {
        multiply(step++);
        out.send_held(box);
        release_previous();
      }
    }
    for (; step < share.k_end; ++step) {
      multiply(step);
      release_previous();
    }
    using Angles = std::conditional_t<kKind == HgemmKind::Heads, HeadAngles, NoAngles>;
    const Angles angles(args, first_row + warp * 16 + lane / 4);
    ptx::wgmma_wait<0>();
    if (previous >= 0) ring.release(previous, share.is_paired);
    auto& d = floats.of(sums);

    // SwiGlu has its gates in the lower half of d.
    if constexpr (kCanSplit) {
      // Block b of the columns of out is finished by rank b % split.
      if (share.split > 1) {
        add_parts_of_k<Tile::kWarpgroups, 32, kOut / 64>(d[0], raw, consumer, share);
      }
    }

    // Biases in front of all else, so that no branch stands between one sum and the next: the
    // functions of many sums then run side by side.
    if constexpr (kKind == HgemmKind::Heads) round_sums<T>(d[0]);
    add_biases<T, kOut, 0>(d, part, column);
    if constexpr (kIsSwiGlu) add_biases<T, kOut, kOut / 2>(d, args.part[1], column);
    if constexpr (kKind == HgemmKind::Gelu) activate_in_turns(d[0], args.epilogue);
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
  share.meet_at_end();
#endif
}

}  // namespace minfer::cuda
