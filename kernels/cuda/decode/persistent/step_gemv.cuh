#pragma once

#include "kernels/cuda/decode/persistent/step_multiply.cuh"
#include "kernels/cuda/decode/persistent/step_products.cuh"
#include "kernels/cuda/gemv/epilogue.cuh"

// Multiplies the staged input by tiles of weights as they come through the ring. Each warp has the
// same columns of every stage, and leaves its sum of a row in scratch[warp][row].
namespace minfer::cuda {

// Calls f<number of tiles>(first tile) for each group of tiles, grouped as in the ring.
template <typename F>
__device__ inline void each_group(int n_tiles, F f) {
  for (int tile = 0, n; tile < n_tiles; tile += n) {
    n = stream_group(n_tiles - tile);
    if (n == 4) f.template operator()<4>(tile);
    if (n == 2) f.template operator()<2>(tile);
    if (n == 1) f.template operator()<1>(tile);
  }
}

// `unit`: the factor of the warp's sums. Float weights take all stages, not only `stages`.
template <typename Clock>
__device__ inline void multiply(const StepGemv& gemv, const StepRing& ring, const uint8_t* input,
                                float* scratch, StepCursor<Clock>& cursor, int n_tiles, float unit,
                                const StepStages& stages) {
  const StepShape shape{stages.begin, stages.end - stages.begin,
                        gemv.n_pieces - stages.begin * kStagePieces, gemv.in_dim, gemv.unit_shift};
  const auto codes = [&]<StepFormat kFormat, int kScales>() {
    each_group(n_tiles, [&]<int kTiles>(int tile) {
      multiply_codes<kFormat, kScales, kTiles>(shape, ring, input, scratch, cursor, tile, unit);
    });
  };
  const auto products = [&]<StepFormat kFormat, int kUnit, bool kMins>() {
    each_group(n_tiles, [&]<int kTiles>(int tile) {
      multiply_products<kFormat, kUnit, kMins, kTiles>(shape, ring, input, scratch, cursor, tile,
                                                       unit);
    });
  };
  using enum StepScales;
  constexpr auto kU4 = StepFormat::U4, kU8 = StepFormat::U8;
  switch (gemv.format) {
    case StepFormat::F16:
      return multiply_floats<false>(shape, ring, input, scratch, cursor, n_tiles);
    case StepFormat::BF16:
      return multiply_floats<true>(shape, ring, input, scratch, cursor, n_tiles);
    case kU4:
      if (gemv.scales == OfRow) return codes.template operator()<kU4, 0>();
      if (gemv.scales == OfPiece) return codes.template operator()<kU4, 1>();
      if (gemv.scales == OfHalfPiece) return codes.template operator()<kU4, 2>();
      if (gemv.scales == Products) return products.template operator()<kU4, 16, false>();
      return products.template operator()<kU4, 32, true>();
    case kU8:
      if (gemv.scales == OfRow) return codes.template operator()<kU8, 0>();
      if (gemv.scales == OfPiece) return codes.template operator()<kU8, 1>();
      if (gemv.scales == Products) return products.template operator()<kU8, 16, false>();
      return products.template operator()<kU8, 32, true>();
  }
}

// Copies to `to`, asynchronously while the block multiplies, the scales of rows that have one each:
// of the block's tiles from first_tile on, and of the pair whose K splits it adds. The scales of a
// gate tile are followed by those of its up tile.
__device__ inline void fetch_row_scales(const StepGemv& gemv, const StepLayer& layer, int phase,
                                        int first_tile, int n_tiles, __half* to) {
  const int halves_log = phase == kGateUp ? 1 : 0, i = thread_index();
  const bool has_pair = gemv.k_split.exists() && gemv.k_split.index == 0;
  if (i >= (n_tiles + int(has_pair)) << (halves_log + 1)) return;
  const int stream = i / 2, in_slice = stream >> halves_log;  // a tile has two times 16 bytes
  const int its_tile = in_slice < n_tiles ? gemv.begin + first_tile + in_slice : gemv.k_split.tile;
  const StepTile tile = step_tile(gemv, phase, its_tile, stream & ((1 << halves_log) - 1));
  const uint8_t* const scales = layer.matrices[first_matrix(phase) + tile.matrix].scales;
  ptx::copy_async_16(ptx::shared_address(to) + 16 * i,
                     scales + int64_t{tile.row_tile} * (kTileRows * 2) + i % 2 * 16);
}
// The place of the scale of a row after fetch_row_scales.
__device__ inline int scale_place(int row) {
  return (row & ~15) + row % 8 * 2 + row / 8 % 2;  // packed_layout.h
}

// The activation of a gate.
template <typename I>
__device__ inline float activated(const StepParams& p, float gate) {
  if constexpr (!I::kIsPlain) {
    if (p.block.activation == Activation::GeluTanh) return precise::gelu_tanh(gate);
    if (p.block.activation == Activation::GeluErf) return precise::gelu_erf(gate);
  }
  return precise::silu(gate);
}

// Element i of a vector of a StepLayer.
__device__ inline float element(const StepParams& p, const void* vector, int i) {
  if (p.vectors_are_bf16) return to_float(static_cast<const __nv_bfloat16*>(vector)[i]);
  return to_float(static_cast<const __half*>(vector)[i]);
}

// The bias of row `row` of a tile of a phase.
__device__ inline float bias_of(const StepParams& p, const StepGemv& gemv, const StepLayer& layer,
                                int phase, int tile, int half_of_pair, int row) {
  const StepTile at = step_tile(gemv, phase, tile, half_of_pair);
  const void* const bias = layer.biases[first_matrix(phase) + at.matrix];
  return bias == nullptr ? 0.0f : element(p, bias, (at.row_tile << gemv.rows_log) + row);
}

__device__ inline float sum_of_warps(const float* scratch, int row) {
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kStepWarps; ++w) sum += scratch[w * kStepMaxRows + row];
  return sum;
}

}  // namespace minfer::cuda
