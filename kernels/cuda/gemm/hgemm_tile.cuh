#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/gemm/gemm.h"

namespace minfer::cuda {
constexpr int kStepK = 64;           // columns of k in a stage: rows of 128 bytes
constexpr int kStagingBytes = 8192;  // 64 rows of 128 bytes

// Epilogues that a kernel is compiled for; which of the two gelu, it is told at run time. Plain:
// Store to out of T, and in transposed tiles what Sums is too: Store or Accumulate to out of F32.
// Heads: Store of q, k and v (GemmArgs::angles), for F16 in tiles of 128 x 256.
enum class HgemmKind { Plain, Sums, SwiGlu, Gelu, Heads };

template <int kWarpgroupsOfTile, int kBlocks, int kColumns, int kDepth>
struct HgemmTile {
  static constexpr int kWarpgroups = kWarpgroupsOfTile;  // that multiply
  static constexpr int kRowBlocks = kBlocks;             // of 64 rows, of each of them
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
  // Columns of out; whether the last 64 of them are stored over some that are stored already; and
  // whether blocks of 64 of them can be shared out to a cluster whose partial sums lie in the ring.
  template <HgemmKind kKind>
  static constexpr int kOut = kKind == HgemmKind::SwiGlu ? kN / 2 : kN;
  template <HgemmKind kKind>
  static constexpr bool kOverlaps = kOut<kKind> % 32 != 0;
  template <HgemmKind kKind>
  static constexpr bool kCanSplit =
      kRowBlocks == 1 && kOut<kKind> % 64 == 0 && kKind != HgemmKind::Heads;
  // Whether two blocks can have the same weights; each brings half of them to both.
  template <HgemmKind kKind>
  static constexpr bool kCanPair = can_pair(kM, kN, Epilogue::Store) && kKind != HgemmKind::Gelu;
  // Boxes of 64 rows of 128 bytes in kOut columns, and how many of them each warpgroup can hold of
  // its last 64 rows besides the sums of the next tile: all, or of F32 those there is room for, or
  // none.
  template <HgemmKind kKind>
  static constexpr int kBoxes = kKind == HgemmKind::Sums ? kOut<kKind> / 32
                                                         : (kOut<kKind> + 63) / 64;
  template <HgemmKind kKind>
  static constexpr int kHeldBoxes = [] {
    constexpr int kRegisters = kRowBlocks == 2 ? 216 : 200;  // for sums, of 240 and 232
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

// x and w load kM and kOut rows, for pairs kN / 2 of w; the tails what is left of them in the last
// tile, since a row that is not there costs the copy engine more than one that is. out stores 64
// rows of 128 bytes, those of one head where out has heads; out_half those of the last 32 columns
// of a tile, 64 bytes each.
struct HgemmMaps {
  CUtensorMap x, x_tail, w[kMaxGemmParts], w_tail[kMaxGemmParts];
  CUtensorMap out[kMaxGemmParts], out_half[kMaxGemmParts];
  CUtensorMap out_last[kMaxGemmParts];  // of a cache: of the last page, up to row m - 1
};
struct HgemmCut {
  int tiles_m, tiles_n;  // along m of a block, or of pairs of them
  int split;
  bool is_paired;
  bool keeps_x;  // hgemm_kernel: L2 is to keep x, which many tiles of a band read one after another
  bool out_by_map[kMaxGemmParts];
  bool holds;  // hgemm_kernel: a tile's sums leave under the next one's products; all by map
};

}  // namespace minfer::cuda
