#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/gemm/gemm.h"

namespace minfer::cuda {
constexpr int kStepK = 64;           // columns of k in a stage: 128 bytes per row
constexpr int kStagingBytes = 8192;  // 64 rows of 128 bytes

// The epilogue that a kernel is compiled for. Plain: Store to out of T; in transposed tiles also
// what Sums is. Sums: Store or Accumulate to out of F32. Gelu: GeluErf or GeluTanh, chosen at run
// time. Heads: Store of q, k and v (GemmArgs::angles), for F16 in tiles of whole heads.
// SwiGlu: any gate; Gelu: either GELU without one.
enum class HgemmKind { Plain, Sums, SwiGlu, Gelu, Heads };

template <int kWarpgroupsOfTile, int kBlocks, int kColumns, int kDepth>
struct HgemmTile {
  static constexpr int kWarpgroups = kWarpgroupsOfTile;  // consumers
  static constexpr int kRowBlocks = kBlocks;             // blocks of 64 rows per consumer
  static constexpr int kM = 64 * kWarpgroups * kRowBlocks, kN = kColumns, kStages = kDepth;
  static constexpr int kBand = kM == 256 ? 8 : 16;  // see place_of
  static constexpr int kThreads = 128 * (kWarpgroups + 1);
  static constexpr int kXBytes = kM * kStepK * 2, kWBytes = kN * kStepK * 2;
  struct alignas(1024) Shared {
    uint8_t x[kStages][kXBytes];
    uint8_t w[kStages][kWBytes];
    uint8_t staging[kWarpgroups][2][kStagingBytes];
    uint64_t full[kStages], empty[kStages];
    float x_scales[kWarpgroups][64 * kRowBlocks], w_scales[kWarpgroups][kN];  // FloatSums
  };
  static_assert(sizeof(Shared) <= 232448);
  // kOut: columns of out. kOverlaps: whether the last box of 64 columns overlaps the one before it.
  // kCanSplit: whether split-K can spread boxes of 64 columns over a cluster, with the partial sums
  // in the ring.
  template <HgemmKind kKind>
  static constexpr int kOut = kKind == HgemmKind::SwiGlu ? kN / 2 : kN;
  template <HgemmKind kKind>
  static constexpr bool kOverlaps = kOut<kKind> % 32 != 0;
  template <HgemmKind kKind>
  static constexpr bool kCanSplit =
      kRowBlocks == 1 && kOut<kKind> % 64 == 0 && kKind != HgemmKind::Heads;
  static constexpr bool kCanPair = can_pair(kM, kN), kGeluLags = gelu_lags(kM, kN);
  // kBoxes: boxes of 64 rows of 128 bytes in kOut columns. kHeldBoxes: how many boxes of its last
  // 64 rows a consumer can hold in registers beside the next tile's accumulators: all or none, or
  // in F32 as many as there is room for.
  template <HgemmKind kKind>
  static constexpr int kBoxes = kKind == HgemmKind::Sums ? kOut<kKind> / 32
                                                         : (kOut<kKind> + 63) / 64;
  template <HgemmKind kKind>
  static constexpr int kHeldBoxes = [] {
    constexpr int kRegisters = kRowBlocks == 2 ? 216 : 200;  // for accumulators, of 240 and 232
    constexpr int kRoom = kRegisters - kRowBlocks * kN / 2;
    if (kKind == HgemmKind::Sums) return std::max(0, std::min(kBoxes<kKind>, kRoom / 16));
    return kOut<kKind> / 4 <= kRoom ? kBoxes<kKind> : 0;
  }();
  static_assert(kRowBlocks > 1 || kM * kN * 4 <= kStages * (kXBytes + kWBytes));
};
using Tile64x96 = HgemmTile<1, 1, 96, 10>;
using Tile64x128 = HgemmTile<1, 1, 128, 8>;
using Tile64x176 = HgemmTile<1, 1, 176, 6>;
using Tile128x96 = HgemmTile<2, 1, 96, 6>;
using Tile128x128 = HgemmTile<2, 1, 128, 6>;
using Tile128x192 = HgemmTile<2, 1, 192, 4>;
using Tile128x224 = HgemmTile<2, 1, 224, 4>;
using Tile128x256 = HgemmTile<2, 1, 256, 4>;
using Tile256x192 = HgemmTile<2, 2, 192, 3>;

// x and w load kM and kOut rows (pairs: kN / 2 rows of w). The tails load only the rows that exist
// in the last tile, because TMA takes longer for a row that does not. out stores 64 rows of 128
// bytes, of one head if out is a cache; out_half stores the last 32 columns of a tile, 64 bytes per
// row.
struct HgemmMaps {
  CUtensorMap x, x_tail, w[kMaxGemmParts], w_tail[kMaxGemmParts];
  CUtensorMap out[kMaxGemmParts], out_half[kMaxGemmParts];
  CUtensorMap out_last[kMaxGemmParts];  // of a cache: its last page, which ends at row m - 1
};
struct HgemmCut {
  int tiles_m, tiles_n;  // along m (counted in pairs if is_paired) and along n
  int split;
  bool is_paired;
  bool keeps_x;  // hgemm_kernel: L2 should keep x, which many tiles of a band read
  bool out_by_map[kMaxGemmParts];  // whether TMA stores the part, else threads do
  bool holds;  // hgemm_kernel: a tile is stored during the next one's K loop (HgemmOut)
};

}  // namespace minfer::cuda
