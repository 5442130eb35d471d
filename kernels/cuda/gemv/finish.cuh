#pragma once

#include "kernels/cuda/gemv/epilogue.cuh"
#include "kernels/cuda/gemv/fetch.cuh"
#include "kernels/cuda/gemv/input.cuh"

namespace minfer::cuda {

// The partial sums of a tile: first to last - 1. They are found in front of the barrier behind
// which the sums are there.
struct TilePartials {
  int first = 0, last = 0;

  TilePartials() = default;
  template <bool kPacked>
  __device__ TilePartials(const GemvRun<kPacked>& run, const GemvParams& p, int tile) {
    const int begin = tile * p.n_chunks;
    first = (tile + run.team_of(begin)) << run.kTeamShift;
    last = (tile + run.team_of(begin + p.n_chunks - 1) + 1) << run.kTeamShift;
  }
  // element: token * 16 + row of the tile.
  __device__ float sum(const float* partials, int n_tokens, int element) const {
    const int of_tile = 16 * n_tokens;
    const float* from = partials + first * of_tile + element;
    float sum = 0;
#pragma unroll 4
    for (int k = first; k < last; ++k, from += of_tile) sum += *from;
    return sum;
  }
};

// The scale and the minimum of a whole row, which is `row` of a tile; 1 and 0 where there are none.
struct RowScale {
  float scale = 1, min = 0;
  bool has_min = false;

  __device__ void load(const void* scales, const float* mins, int row_tile, int row,
                       const GemvParams& p) {
    // index as in PackedLayout::scale_index()
    const int64_t index = int64_t{row_tile} * kTileRows + row % 8 * 2 + row / 8 % 2;
    scale = p.scales_are_f32 ? static_cast<const float*>(scales)[index]
                             : to_float(static_cast<const __half*>(scales)[index]);
    has_min = mins != nullptr;
    if (has_min) min = mins[index];
  }
  // Of a sum of codes times the activations of a token.
  __device__ float applied(float sum, const float* sums, int token, const GemvParams& p) const {
    sum *= scale;
    if (!has_min) return sum;
    float sum_x = 0;
    for (int k = 0; k < p.n_sums; ++k) sum_x += sums[k * p.sum_stride + token];
    return sum + min * (sum_x / p.sum_factor);
  }
};

// The end of the gemv kernel: adds up the partial sums of its warps, applies scales and mins of
// rows, biases and the epilogue, and stores the outputs. Every thread of the block calls it.
template <typename T, bool kPacked, bool kRowScales, GemvUse kUse>
__device__ inline void finish_tiles(const float* partials, const float* sums,
                                    const StagedNorms& norms, const GemvParams& p) {
  const GemvInput input = input_of<kUse>(p);
  const GemvRun<kPacked> run(p, int(threadIdx.x) / 32, int(blockIdx.x));
  const int n_matrices = p.pairs ? 2 : 1, of_tile = 16 * input.n_tokens;
  const int n_elements = run.n_tiles / n_matrices * of_tile;
  // Elements go to the last warps first: within a team, the last warps have the fewest steps and
  // arrive first.
  const int thread = (kGemvWarps - 1 - int(threadIdx.x) / 32) * 32 + int(threadIdx.x) % 32;
  bool is_first = true;
  for (int i = thread; i < n_elements || is_first; i += kGemvThreads) {
    const int round = p.by_tokens.quotient(i / 16), in_tile = i - round * of_tile;
    const int token = in_tile / 16, tile = round * n_matrices;
    const GemvTile at_tile = tile_of(p, tile);
    const int row = at_tile.row_tile * kTileRows + in_tile % 16;
    const GemvPartParams* const parts = p.parts + at_tile.part;
    const bool finishes = i < n_elements && row < parts[0].out_dim;
    const int64_t at = int64_t{token} * parts[0].out_dim + row;

    // These loads are in flight while other warps still multiply.
    float bias[2] = {}, residual = 0;
    RowScale scales[2];
    TilePartials own[2];
    if (finishes) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        if (m >= n_matrices) break;
        own[m] = TilePartials(run, p, tile + m);
        if (parts[m].bias != nullptr) bias[m] = to_float(static_cast<const T*>(parts[m].bias)[row]);
        if (kPacked && kRowScales) {
          scales[m].load(parts[m].scales, parts[m].mins, at_tile.row_tile, row, p);
        }
      }
      if (p.epilogue == Epilogue::Accumulate)
        residual = static_cast<const float*>(parts[0].out)[at];
    }
    if (is_first) __syncthreads();
    is_first = false;
    if (!finishes) continue;
    const float scale = norms.scale(token, input);

    float result[2] = {};
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      if (m >= n_matrices) break;
      result[m] = own[m].sum(partials, input.n_tokens, in_tile);
      if (kPacked && kRowScales) result[m] = scales[m].applied(result[m], sums, token, p);
      result[m] = result[m] * scale + bias[m];
    }
    store_result<T, kUse == GemvUse::Any>(parts[0].out, at, p.out_is_f32, p.epilogue, result[0],
                                          result[1], residual);
  }
}

// The same with experts, for one row of x. With GateUp, out [n_active, out_dim] is the hidden
// layer of each expert, times its weight; else out [out_dim] is the sum over the experts, in their
// order. results: a float for each row of the block's tiles.
template <typename T, bool kPacked, bool kRowScales, GemvUse kUse>
__device__ inline void finish_experts(float* results, const float* partials, const float* sums,
                                      void* out, const GemvExpert* experts, const GemvParams& p) {
  constexpr bool kPairs = kUse == GemvUse::GateUp;
  const int n_tokens = input_of<kUse>(p).n_tokens;
  const GemvRun<kPacked> run(p, int(threadIdx.x) / 32, gemv_block<true>(p));
  const int out_dim = p.parts[0].out_dim, n_of_round = tiles_of_round<kUse>(p);
  const int n_rows = run.n_tiles / n_of_round * 16;  // of out
  const auto row_of = [&](int i) {
    const int tile = i / 16 * n_of_round;
    return expert_tile_of<kUse>(p, tile).row_tile * kTileRows + i % 16;
  };
  const int own = int(threadIdx.x);
  float residual = 0;  // of the thread's first row: in flight while other warps still multiply
  if (!kPairs && own < n_rows && row_of(own) < out_dim) {
    residual = static_cast<const float*>(out)[row_of(own)];
  }
  bool is_first = true;
  for (int i = own; i < run.n_tiles * 16 || is_first; i += kGemvThreads) {
    const int tile = i / 16, in_tile = i % 16;
    const ExpertGemvTile at = expert_tile_of<kUse>(p, tile);
    const int row = at.row_tile * kTileRows + in_tile, token = kPairs ? 0 : at.slot;
    const bool has_row = i < run.n_tiles * 16 && row < out_dim;
    RowScale scale;
    float bias = 0;
    TilePartials its;
    if (has_row) {
      its = TilePartials(run, p, tile);
      const ExpertPlace& place = experts[at.slot].places[at.part];
      if (kPacked && kRowScales) scale.load(place.scales, place.mins, at.row_tile, in_tile, p);
      if (place.bias != nullptr) {
        bias = to_float(static_cast<const T*>(place.bias)[row]);
        if (!kPairs) bias *= experts[at.slot].weight;
      }
    }
    if (is_first) __syncthreads();
    is_first = false;
    if (!has_row) continue;
    float sum = its.sum(partials, n_tokens, token * 16 + in_tile);
    if (kPacked && kRowScales) sum = scale.applied(sum, sums, token, p);
    results[i] = sum + bias;
  }
  __syncthreads();
  for (int i = own; i < n_rows; i += kGemvThreads) {
    const int row = row_of(i);
    if (row >= out_dim) continue;
    const float* const of_row = results + i / 16 * n_of_round * 16 + i % 16;
    if (kPairs) {
      const int slot = expert_tile_of<kUse>(p, i / 16 * n_of_round).slot;
      const float hidden =
          precise::swiglu(of_row[0], of_row[16], p.experts.clamp) * experts[slot].weight;
      static_cast<T*>(out)[int64_t{slot} * out_dim + row] = from_float<T>(hidden);
      continue;
    }
    float sum = 0;
    for (int slot = 0; slot < n_of_round; ++slot) sum += of_row[slot * 16];
    float& to = static_cast<float*>(out)[row];
    to = (i == own ? residual : to) + sum;
  }
}

}  // namespace minfer::cuda
