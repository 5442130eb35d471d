#pragma once

#include "kernels/cuda/moe/expert_gemm.h"

// How the rows of the experts are cut to tiles, on the card.
namespace minfer::cuda {

// The tile of a block: rows [place, end) of x, which belong to one expert, by a block of columns of
// out.
struct ExpertTile {
  int expert, place, end, column_block;
};

// tile_begins [n_experts + 1]: the tiles of the experts before each one, in tiles of at most
// kMostRows rows by one block of columns. Every thread of the block calls it; it ends with a
// barrier.
template <int kMostRows>
__device__ inline void count_tiles(int* tile_begins, const int32_t* begins, int n_experts) {
  const int lane = int(threadIdx.x) % 32;
  if (threadIdx.x < 32) {
    int before = 0;
    for (int first = 0; first < n_experts; first += 32) {
      const int e = first + lane;
      int sum = 0;
      if (e < n_experts) sum = (begins[e + 1] - begins[e] + kMostRows - 1) / kMostRows;
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {  // sum over the lanes up to this one
        const int other = __shfl_sync(~0u, sum, lane >= distance ? lane - distance : lane);
        if (lane >= distance) sum += other;
      }
      if (e < n_experts) tile_begins[e + 1] = before + sum;
      before += __shfl_sync(~0u, sum, 31);
    }
    if (lane == 0) tile_begins[0] = 0;
  }
  __syncthreads();
}

// Tile number `at`: experts one after the other, in each the blocks of columns, in each of these
// the rows, so that blocks that run together read the same weights. If the last two tiles of an
// expert have at most 2 * kSmall rows together, each has at most kSmall: such tiles cost less.
template <int kMostRows, int kSmall = 0>
__device__ inline ExpertTile tile_at(int at, const int* tile_begins, const ExpertGemmParams& p) {
  int low = 0, high = p.n_experts;  // tile_begins[low] * n <= at < tile_begins[high] * n
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (tile_begins[middle] * p.column_blocks <= at ? low : high) = middle;
  }
  const int n_tiles = tile_begins[low + 1] - tile_begins[low];
  const int in_expert = at - tile_begins[low] * p.column_blocks;
  const int begin = p.begins[low], end = p.begins[low + 1], index = in_expert % n_tiles;
  const int last_two = begin + (n_tiles - 2) * kMostRows;
  if (n_tiles > 1 && index >= n_tiles - 2 && end - last_two <= 2 * kSmall) {
    const int middle = last_two + kSmall;
    return index == n_tiles - 1 ? ExpertTile{low, middle, end, in_expert / n_tiles}
                                : ExpertTile{low, last_two, middle, in_expert / n_tiles};
  }
  const int place = begin + index * kMostRows;
  return {low, place, min(place + kMostRows, end), in_expert / n_tiles};
}

}  // namespace minfer::cuda
