#pragma once

#include "kernels/cuda/elementwise/activations.cuh"
#include "kernels/cuda/moe/expert_fetch.cuh"

namespace minfer::cuda {

// out[place] = x wᵀ + bias, or swiglu(x gateᵀ + bias, x upᵀ + bias), for the rows that chose each
// expert: ExpertCall
//
//   x         half, rows of whole 16 bytes; out half
//   weights   floats row-major, or packed codes: packed_layout.h
//   launch    persistent: a block takes every gridDim.x-th tile of at most kExpertRows rows of one
//             expert by kExpertWarps * 32 rows of weights (with SwiGlu, half as many of gate and of
//             up). How many tiles there are it counts itself. A warp multiplies its two row tiles
//             of weights with all rows of x: weights are operand A of mma.m16n8k16, so that codes
//             are dequantized in registers, once for all rows, and rows of x that are not there
//             cost nothing in steps of 8
//   maths     codes times scale plus minimum are rounded to f32 and to T; f32 sums over k in order;
//             one rounding at the store. A row's bits do not depend on the others
//   moves     the weights of the experts that have rows, once for each kExpertRows rows
template <typename T, ExpertFormat kFormat, bool kSwiGlu>
__global__ void __launch_bounds__(kExpertThreads, 1)
    expert_gemm_kernel(const __grid_constant__ ExpertGemmParams p) {
  using Stage = ExpertStage<kFormat>;
  constexpr int kTokenTiles = kExpertRows / 8;
  uint8_t* const ring = ptx::dynamic_shared();
  int* const tile_begins = reinterpret_cast<int*>(ring + kExpertStages * Stage::kBytes);
  const int thread = int(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int g = lane / 4, t = lane % 4;
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  count_tiles<kExpertRows>(tile_begins, p.begins, p.n_experts);
  const int n_tiles = tile_begins[p.n_experts] * p.column_blocks;

  for (int at = int(blockIdx.x); at < n_tiles; at += int(gridDim.x)) {
    const ExpertTile tile = tile_at<kExpertRows>(at, tile_begins, p);
    const int n_rows = tile.end - tile.place;
    const ExpertFetch<T, kFormat, kSwiGlu> fetch(tile, p);
    float sums[2][kTokenTiles][4] = {};
    for (int step = 0; step < kExpertStages - 1; ++step) {
      if (step < p.n_steps) fetch.begin(ring + step * Stage::kBytes, step, p);
      ptx::copy_async_commit();
    }
    for (int step = 0; step < p.n_steps; ++step) {
      ptx::copy_async_wait<kExpertStages - 2>();
      __syncthreads();  // this stage is copied, and all warps have read the one before it
      const int next = step + kExpertStages - 1;
      if (next < p.n_steps) fetch.begin(ring + next % kExpertStages * Stage::kBytes, next, p);
      ptx::copy_async_commit();
      const uint8_t* const stage = ring + step % kExpertStages * Stage::kBytes;
      const uint8_t* const own = stage + Stage::kXBytes + warp * 2 * Stage::kTileBytes;
      const StagedWeights<T, kFormat> weights[] = {{own, step, p},
                                                   {own + Stage::kTileBytes, step, p}};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Fragments a[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) weights[r].load(a[r], half, p);
        const uint8_t* const x = stage + g * Stage::kRowBytes + half * 64 + t * 16;
#pragma unroll
        for (int n = 0; n < kTokenTiles; ++n) {
          if (n * 8 >= n_rows) break;
          const uint4 v = *reinterpret_cast<const uint4*>(x + n * 8 * Stage::kRowBytes);
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            ptx::mma_m16n8k16<T>(sums[r][n], a[r][0][0], a[r][0][1], a[r][0][2], a[r][0][3], v.x,
                                 v.y);
            ptx::mma_m16n8k16<T>(sums[r][n], a[r][1][0], a[r][1][1], a[r][1][2], a[r][1][3], v.z,
                                 v.w);
          }
        }
      }
    }

    // Sums of a lane: row g (+ 8) of the weights, rows 8 n + 2 t (+ 1) of x. They are turned round
    // in the ring, where no copy is under way any more: out [rows, kColumns], padded against bank
    // conflicts.
    constexpr int kColumns = kExpertWarps * kTileRows * (kSwiGlu ? 1 : 2), kStride = kColumns + 8;
    T* const staged = reinterpret_cast<T*>(ring);
    ptx::copy_async_wait<0>();
    __syncthreads();
    const auto bias_of = [&](const ExpertPlace* places, int row) {
      const T* const bias = static_cast<const T*>(places[tile.expert].bias);
      return bias == nullptr || row >= p.out_dim ? 0.0f : to_float(bias[row]);
    };
#pragma unroll
    for (int lower = 0; lower < 2; ++lower) {
#pragma unroll
      for (int r = 0; r < (kSwiGlu ? 1 : 2); ++r) {
        const int in_block = (kSwiGlu ? warp : 2 * warp + r) * kTileRows + g + 8 * lower;
        const int column = tile.column_block * kColumns + in_block;
        const float bias = bias_of(p.places, column);
        const float up_bias = kSwiGlu ? bias_of(p.up_places, column) : 0.0f;
#pragma unroll
        for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int row = n * 8 + 2 * t + i;
            float value = sums[r][n][2 * lower + i] + bias;
            if constexpr (kSwiGlu) {
              value = swiglu(value, sums[1][n][2 * lower + i] + up_bias, p.clamp);
            }
            staged[row * kStride + in_block] = from_float<T>(value);
          }
        }
      }
    }
    __syncthreads();
    const int first = tile.column_block * kColumns, n_columns = min(kColumns, p.out_dim - first);
    T* const out = static_cast<T*>(p.out) + int64_t{tile.place} * p.out_dim + first;
    constexpr int kVec = Vec<T>::kSize;
    for (int i = thread * kVec; i < n_rows * kColumns; i += kExpertThreads * kVec) {
      const int row = i / kColumns, column = i % kColumns;
      const T* const from = staged + row * kStride + column;
      T* const to = out + int64_t{row} * p.out_dim + column;
      if (p.out_dim % kVec == 0) {  // every row is aligned then
        if (column < n_columns)
          *reinterpret_cast<Vec<T>*>(to) = *reinterpret_cast<const Vec<T>*>(from);
      } else {
        for (int j = 0; j < kVec && column + j < n_columns; ++j) to[j] = from[j];
      }
    }
    __syncthreads();  // the ring is filled again for the next tile
  }
}

}  // namespace minfer::cuda
