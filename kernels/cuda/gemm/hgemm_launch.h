#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/base/math.h"
#include "kernels/cuda/checkable.h"
#include "kernels/cuda/gemm/hgemm_tile.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tensor_map.h"

// What the launches of hgemm's kernels have in common.
namespace minfer::cuda {

inline bool whole_16_bytes(const void* data, int64_t row_bytes) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && row_bytes % 16 == 0;
}
// Whether TMA can store out through a tensor map; if not, threads store single elements.
inline bool stores_by_map(const void* out, int64_t row_bytes) {
  return !kIsCheckable && whole_16_bytes(out, row_bytes);
}

// Launches a plan with transposed tiles.
void hgemm_transposed(cudaStream_t stream, GemmArgs args, const GemmPlan& plan);

// Cuts a GEMM into tiles of tile_m rows and tile_n columns of out, and sets the tiles of each part
// in `args`.
inline HgemmCut cut_gemm(GemmArgs& args, const GemmPlan& plan, int tile_m, int tile_n) {
  HgemmCut cut{};
  cut.tiles_m = static_cast<int>(ceil_div(args.m, plan.is_paired ? 2 * tile_m : tile_m));
  cut.tiles_n = narrow<int>(set_tiles(args, tile_n));
  cut.split = plan.split;
  cut.is_paired = plan.is_paired;
  return cut;
}
// The number of clusters to launch: one per tile with split-K, else as many as run at once. Pairs
// use the fewest clusters that need no more rounds of tiles: rounds then begin at the same row, and
// read the same rows of x and w.
inline int clusters_for(const GemmPlan& plan, const HgemmCut& cut) {
  const int n_tiles = narrow<int>(int64_t{cut.tiles_m} * cut.tiles_n);
  const int most = gemm_card().clusters_at_once(plan.blocks_of_cluster());
  MINFER_CHECK(most > 0, "hgemm: this card runs no clusters of ", plan.blocks_of_cluster());
  if (plan.split > 1) return n_tiles;
  const int at_once = std::min(n_tiles, most);
  if (!plan.is_paired) return at_once;
  return narrow<int>(ceil_div(n_tiles, ceil_div(n_tiles, at_once)));
}

}  // namespace minfer::cuda
