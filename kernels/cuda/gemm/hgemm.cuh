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
// The producer, one thread: loads x and w by TMA for all K steps of the block's tiles. Paired
// blocks run through k forwards and backwards in turn: L2 cannot hold all that the tiles in flight
// read, but it still holds the columns of x where the tile before ended. Unpaired blocks have their
// own loop without an L2 policy: passing a policy costs the thread some 100 clocks per K step,
// which is too slow for tiles of 128 x 128 and smaller.
template <typename Tile, HgemmKind kKind>
__device__ inline void load_tiles(typename Tile::Shared& s, const HgemmMaps& maps,
                                  const GemmArgs& args, const HgemmCut& cut,
                                  const BlockSlice& slice) {
  constexpr int kM = Tile::kM, kN = Tile::kN, kOut = Tile::template kOut<kKind>;
  constexpr bool kIsSwiGlu = kKind == HgemmKind::SwiGlu;
  const uint64_t x_policy = ptx::l2_policy(cut.keeps_x);
  RingPlace<Tile> ring(s);
  bool is_backwards = false;
  for (int tile = slice.first_tile; tile < slice.n_tiles; tile += slice.stride) {
    const GemmPlace place = place_of<Tile::kBand>(args, cut, slice, tile);
    const int row = place.row_tile * kM, column = place.column_tile * kOut;
    // With an odd number of row tiles, no rows are left for the second block of the last pair.
    const int rows_left = args.m - row, rows = max(0, min(kM, rows_left));
    const int columns = min(kOut, args.part[place.part].n - column);
    const CUtensorMap* const x_map = rows_left >= kM ? &maps.x : &maps.x_tail;
    const CUtensorMap* const w_maps = columns == kOut ? maps.w : maps.w_tail;
    // The second half of a pair's weight rows may lie past the end: its place keeps old contents.
    const int halves = kIsSwiGlu || columns > kN / 2 ? 2 : 1;
    const int w_rows = slice.is_paired ? halves * (kN / 2) : (kIsSwiGlu ? 2 : 1) * columns;
    const int n_bytes = (rows + w_rows) * kStepK * 2;
    const auto load = [&](auto is_paired) {
      for (int step = slice.k_begin; step < slice.k_end; ++step) {
        ring.wait_until_read();
        ptx::mbarrier_expect(ring.full(), n_bytes);
        uint8_t *const x = s.x[ring.slot()], *const w = s.w[ring.slot()];
        if constexpr (decltype(is_paired)::value) {
          const int at = (is_backwards ? slice.k_begin + slice.k_end - 1 - step : step) * kStepK;
          const int half = slice.rank;
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
    slice.is_paired ? load(std::true_type()) : load(std::false_type());
    is_backwards = slice.is_paired && !is_backwards;
  }
}

// Adds a part's biases, those of kOut columns from `column` on, to the accumulators of each row
// block from index kFirst on.
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
#endif

// out_i = epilogue(x w_iT + bias_i) for the parts i; see Epilogue, and for Heads GemmArgs::angles
//
//   x, w      [m, k], [n_i, k] Operand, rows 16-byte aligned: T, or int8_t codes with scales [m],
//             [n_i] F32. With codes, k and "columns of k" below count pairs of codes
//   out       [m, n_i] T or F32; with Heads, k and v go to pages of a KV cache (CacheBox)
//   launch    persistent: a block takes every stride-th tile of kM x kN accumulators (BlockSlice).
//             Warpgroup 0 is the producer: it loads x and w by TMA into a ring of kStages stages of
//             64 columns of k, rows of 128 bytes with the 128-byte swizzle. Each other warpgroup is
//             a consumer: it computes kRowBlocks times 64 rows by wgmma, or only releases the
//             stages if all of its rows lie past the last row of x. Past the last rows of x and w,
//             a stage keeps old contents, which reach only accumulators that are not stored. With
//             is_paired, the two blocks of a cluster use the same weights and adjacent row tiles;
//             each loads half of the weights for both (TMA multicast), and refills a stage when
//             both have read it. If a block takes several tiles, it stores a tile during the K loop
//             of the next one (HgemmOut). With split > 1 (split-K), the blocks of a cluster each
//             take a slice of k of one tile, and each finishes some of its columns
//   maths     f32 sums over k in order, backwards in every second tile of a pair; with split-K, the
//             blocks' sums are then added in order; one rounding at the store. With codes, int32
//             sums, which are exact, are rounded to f32 and multiplied by the scales of row and
//             column. Accumulate adds each sum once by TMA, so with one rounding and in one order
//   moves     2 (m k + n k) bytes and out; bound by its 2 m n k flops, with codes 4 m n k
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
  const BlockSlice slice = slice_of_block<kCanSplit, Tile::kCanPair>(args, cut);
  begin_gemm<Tile>(s, maps, slice);

  if (warpgroup == 0) {
    if constexpr (Tile::kWarpgroups == 2) ptx::shrink_registers<kRowBlocks == 2 ? 24 : 40>();
    if (thread == 0) load_tiles<Tile, kKind>(s, maps, args, cut, slice);
    __syncwarp();
    slice.meet_for_sums();
    slice.meet_at_end();
    return;
  }

  if constexpr (Tile::kWarpgroups == 2) ptx::grow_registers<kRowBlocks == 2 ? 240 : 232>();
  const int consumer = warpgroup - 1, warp = thread / 32, lane = thread % 32;
  RingPlace<Tile> ring(s);
  HgemmOut<T, Tile, kKind> out(maps, args, cut, s.staging[consumer], 1 + consumer, slice.k_split);
  const bool holds = Tile::template kHeldBoxes<kKind> > 0 && cut.holds;
  FloatSums<Operand, Tile, kKind> floats(s, args, consumer);
  if constexpr (kKind == HgemmKind::Gelu && Tile::kGeluLags) begin_behind<Tile>(s, consumer, slice);
  for (int tile = slice.first_tile; tile < slice.n_tiles; tile += slice.stride) {
    const GemmPlace place = place_of<Tile::kBand>(args, cut, slice, tile);
    const GemmArgs::Part& part = args.part[place.part];
    const int first_row = place.row_tile * Tile::kM + consumer * 64 * kRowBlocks;
    const int column = place.column_tile * kOut;
    const bool has_rows = first_row < args.m;
    if (!has_rows) {
      if (holds) out.send_all_held();
      ring.skip(slice, 1 + consumer);
      if (slice.split == 1) continue;
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
      for (int b = 0; b < kRowBlocks; ++b) {  // 8 KB apart; one accumulator's mmas are adjacent
#pragma unroll
        for (int i = 0; i < kStepK / 16; ++i) {
          ptx::wgmma(sums[b], x_tile + b * 512 + 2 * i, w_tile + 2 * i,
                     step > slice.k_begin || i > 0, Operand{});
        }
      }
      ptx::wgmma_commit();
    };
    const auto release_previous = [&] {
      ptx::wgmma_wait<1>();  // one K step stays in flight; the one before it has read its stage
      if (previous >= 0) ring.release(previous, slice.is_paired);
      previous = ring.slot();
      ring.advance();
    };
    int step = has_rows ? slice.k_begin : slice.k_end;
    if (holds) {  // before the first tile nothing is held, and nothing is stored
#pragma unroll
      for (int box = 0; box < out.kHeldBoxes; ++box) {
        multiply(step++);
        out.send_held(box);
        release_previous();
      }
    }
    for (; step < slice.k_end; ++step) {
      multiply(step);
      release_previous();
    }
    using Angles = std::conditional_t<kKind == HgemmKind::Heads, HeadAngles, NoAngles>;
    const Angles angles(args, first_row + warp * 16 + lane / 4);
    ptx::wgmma_wait<0>();
    if (previous >= 0) ring.release(previous, slice.is_paired);
    auto& d = floats.of(sums);

    // With SwiGlu, the lower half of d is gate and the upper half is up.
    if constexpr (kCanSplit) {
      // Rank b % split finishes the b-th 64 columns of out.
      if (slice.split > 1) {
        reduce_split_k<Tile::kWarpgroups, 32, kOut / 64>(d[0], raw, consumer, slice);
      }
    }

    // Add biases before all else, so that no branch lies between the activations below: those of
    // many accumulators then overlap.
    if constexpr (kKind == HgemmKind::Heads) round_sums<T>(d[0]);
    add_biases<T, kOut, 0>(d, part, column);
    if constexpr (kIsSwiGlu) add_biases<T, kOut, kOut / 2>(d, args.part[1], column);
    if constexpr (kKind == HgemmKind::Gelu) {
#pragma unroll
      for (int b = 0; b < kRowBlocks; ++b) activate_in_turns(d[b], args.epilogue);
    }
    if constexpr (kKind == HgemmKind::Heads) {
      static_assert(kRowBlocks == 1);
      if (part.bias != nullptr) round_sums<T>(d[0]);
      if (part.norm_weight != nullptr) norm_heads<T>(d[0], part.norm_weight, args.norm_eps);
      if (place.part < 2) angles.rotate(d[0]);
    }

#pragma unroll
    for (int b = 0; b < kRowBlocks; ++b) {
      if constexpr (kIsSwiGlu) {
        // One branch for all, so that the activations of many accumulators overlap.
        const auto multiply_gates = [&](auto activation) {
#pragma unroll
          for (int j = 0; j < kOut / 2; ++j) d[b][j] = activation(d[b][j]) * d[b][kOut / 2 + j];
        };
        visit_gate(args.epilogue, multiply_gates);
      }
      // Heads has no registers for both store() and hold().
      if (kKind == HgemmKind::Heads || (holds && b + 1 == kRowBlocks)) {
        out.hold(d[b], place.part, first_row + b * 64, column);
        if (!holds) out.send_all_held();
      } else {
        out.store(d[b], place.part, first_row + b * 64, column);
      }
    }
    ptx::named_barrier(1 + consumer, 128);  // for the compiler: see ptx::warpgroup_index
  }
  if (holds) out.send_all_held();
  if (thread == 0) ptx::bulk_wait<0>();
  slice.meet_at_end();
#endif
}

}  // namespace minfer::cuda
