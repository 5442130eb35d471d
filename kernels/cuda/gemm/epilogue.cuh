#pragma once

#include "kernels/cuda/elementwise/activations.cuh"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/numbers.cuh"

namespace minfer::cuda {

// Where a tile of out lies: its part, its index along n in that part, its index along m.
struct GemmPlace {
  int part, column_tile, row_tile;
};

// Maps the index of a tile to its place. Tiles are numbered in bands of kBand row tiles, and within
// a band column by column (over all parts), so that the rows of x and the weights in use at one
// time fit in L2. A block takes every stride-th tile. If the band's row tiles divide the stride,
// the block would get the same row tile in every round: each round is then rotated by one row tile,
// so that every block gets some of the last row tiles, which are short. Every second band runs
// through the columns backwards, because L2 still holds the weights where the band before ended.
template <int kBand>
__device__ inline GemmPlace place_of(const GemmArgs& args, int tile, int stride, int tiles_m,
                                     int tiles_n) {
  const int band = tile / (kBand * tiles_n), rows = min(kBand, tiles_m - band * kBand);
  const int within = tile - band * kBand * tiles_n;
  const int round = stride % rows == 0 ? within / stride : 0;
  GemmPlace place{0, within / rows, band * kBand + (within + round) % rows};
  if (band % 2 != 0) place.column_tile = tiles_n - 1 - place.column_tile;
#pragma unroll
  for (int i = 0; i < kMaxGemmParts - 1; ++i) {
    if (place.part == i && i + 1 < args.n_parts && place.column_tile >= args.part[i].n_tiles) {
      place.column_tile -= args.part[i].n_tiles;
      place.part = i + 1;
    }
  }
  return place;
}

template <typename T>
__device__ inline float bias_at(const GemmArgs::Part& part, int column) {
  if (part.bias == nullptr || column >= part.n) return 0;
  return to_float(static_cast<const T*>(part.bias)[column]);
}

// Calls f with the activation of the epilogue's gate. All threads take the same branch.
template <typename F>
__device__ inline void visit_gate(Epilogue epilogue, const F& f) {
  if (epilogue == Epilogue::GeGluErf) return f([](float x) { return gelu_erf(x); });
  if (epilogue == Epilogue::GeGluTanh) return f([](float x) { return gelu_tanh(x); });
  f([](float x) { return silu(x); });
}

// Applies GELU to kN sums if the epilogue has it. All threads take the same branch.
template <int kN>
__device__ inline void activate(float (&sums)[kN], Epilogue epilogue) {
  if (epilogue == Epilogue::GeluErf) {
#pragma unroll
    for (float& sum : sums) sum = gelu_erf(sum);
  } else if (epilogue == Epilogue::GeluTanh) {
#pragma unroll
    for (float& sum : sums) sum = gelu_tanh(sum);
  }
}

// Applies GELU in a loop over groups of accumulators. Unrolled over all, its code would be so long
// that fetching instructions took the time. Registers have no index, so each round moves the group
// that is done to the end; after the last round, all are in place again.
template <int kSums>
__device__ inline void activate_in_turns(float (&d)[kSums], Epilogue epilogue) {
  constexpr int kAtOnce = [] {
    int n = 32;
    while (kSums % n != 0) --n;
    return n;
  }();
  static_assert(kAtOnce >= 16);
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

// Rounds two adjacent elements of a row to T and packs them, the first in the lower half.
template <typename T>
__device__ inline uint32_t pack_pair(float a, float b) {
  const Vec<T, 2> pair{from_float<T>(a), from_float<T>(b)};
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Where a KV cache stores an element of out: in row `row` of matrix `matrix`, which is
// [kPagePositions, kFusedHeadDim] for one page and head. `page` is an index into the page table of
// the sequence.
struct CacheBox {
  int page, matrix, row;
  __device__ CacheBox(const GemmArgs::Part& part, int row_of_out, int column) {
    const int pos = part.pos + row_of_out;
    page = pos / int{kPagePositions};
    matrix = __ldg(part.pages + page) * (part.n / kFusedHeadDim) + column / kFusedHeadDim;
    row = pos % int{kPagePositions};
  }
};

// The index of an element of out, which may be a KV cache.
__device__ inline int64_t place_in_out(const GemmArgs::Part& part, int row, int column) {
  if (part.pages == nullptr) return int64_t{row} * part.n + column;
  const CacheBox box(part, row, column);
  return (int64_t{box.matrix} * int{kPagePositions} + box.row) * kFusedHeadDim +
         column % kFusedHeadDim;
}

// Stores or adds one element of out.
template <typename T>
__device__ inline void put(const GemmArgs& args, void* out, int64_t at, float sum) {
  if (!args.out_is_f32) {
    static_cast<T*>(out)[at] = from_float<T>(sum);
  } else if (args.epilogue == Epilogue::Accumulate) {
    static_cast<float*>(out)[at] += sum;
  } else {
    static_cast<float*>(out)[at] = sum;
  }
}

}  // namespace minfer::cuda
