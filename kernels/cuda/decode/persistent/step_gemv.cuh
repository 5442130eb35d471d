#pragma once

#include "kernels/cuda/decode/persistent/step_multiply.cuh"
#include "kernels/cuda/decode/persistent/step_products.cuh"
#include "kernels/cuda/gemv/epilogue.cuh"

// Multiplies the staged input by tiles of weights as they come through the ring. Each warp has the
// same columns of every stage, and leaves its sum of a row in scratch[warp][row]; of whole rows of
// floats see multiply_rows.
namespace minfer::cuda {

//   unit      the factor of the warp's sums, for each token
//   stages    those that it takes of each tile; of float weights it takes all
//   is_head   whether the weights are those of the output matrix
//   in_parts  the input is that of `stages` alone, and the sums are added to those of the stages
//             before, if there are any
template <typename I, typename Clock>
__device__ inline void multiply(const StepGemv& gemv, const StepRing& ring, const uint8_t* input,
                                int token_stride, float* scratch, StepCursor<Clock>& cursor,
                                int n_tiles, const float (&unit)[I::kTokens],
                                const StepStages& stages, bool is_head, bool in_parts = false) {
  const int pieces =  // of a whole stage
      I::kIsInt4 || I::kIsInt8 ? kStagePieces : stage_pieces(gemv.format);
  const StepShape shape{in_parts ? 0 : stages.begin,
                        stages.end - stages.begin,
                        min(gemv.n_pieces, stages.end * pieces) - stages.begin * pieces,
                        in_parts ? min(gemv.in_dim, kPartColumns) : gemv.in_dim,
                        gemv.unit_shift,
                        gemv.stage_scale_bytes,
                        token_stride};
  [[maybe_unused]] const auto codes = [&]<StepFormat kFormat, int kScales>() {
    const CodesLane at =
        codes_lane<kFormat, kScales, false, I::kTokens, I::kKeepsConstants>(shape, input);
    each_group(n_tiles, [&]<int kTiles>(int tile) {
      multiply_codes<kFormat, kScales, false, kTiles, I::kAsksAhead>(
          shape, ring, at, scratch, cursor, {}, tile, unit, in_parts && stages.begin != 0);
    });
  };
  [[maybe_unused]] const auto apart = [&]<typename Loop>() {
    const uint8_t* const memory = ptx::dynamic_shared<128>();
    const auto scratch_at = int(reinterpret_cast<uint8_t*>(scratch) - memory);
    cursor = multiply_apart<Loop>(shape, ring, int(input - memory), scratch_at, cursor, gemv.table,
                                  n_tiles, unit[0]);
  };
  [[maybe_unused]] const auto products = [&]<StepFormat kFormat, int kUnit, bool kMins>() {
    if constexpr (I::kIsProducts) {
      each_group(n_tiles, [&]<int kTiles>(int tile) {
        multiply_products<kFormat, kUnit, kMins, kTiles, I::kKeepsConstants>(
            shape, ring, input, scratch, cursor, {}, tile, unit);
      });
    } else {
      apart.template operator()<ProductsLoop<kFormat, kUnit, kMins>>();
    }
  };
  [[maybe_unused]] const auto codes_apart = [&]<StepFormat kFormat, int kScales, bool kMins>() {
    apart.template operator()<CodesLoop<kFormat, kScales, kMins>>();
  };
  [[maybe_unused]] const auto floats = [&]<bool kBf16>() {
    if (I::kIsFloat && gemv.stage_rows_log == kFloatRowsLog) {
      multiply_rows<kBf16, kFloatRows>(gemv.in_dim, ring, input, scratch, cursor, n_tiles);
    } else if (I::kIsFloat && gemv.has_several_rows()) {
      multiply_rows<kBf16, 2>(gemv.in_dim, ring, input, scratch, cursor, 2 * n_tiles);
    } else {
      multiply_floats<kBf16>(shape, ring, input, scratch, cursor, n_tiles);
    }
  };
  using enum StepScales;
  constexpr auto kU4 = StepFormat::U4, kU8 = StepFormat::U8;
  if constexpr (I::kIsFloat) {
    if (gemv.format == StepFormat::F16) return floats.template operator()<false>();
    return floats.template operator()<true>();
  } else if constexpr (I::kIsInt4 || I::kIsInt8) {
    constexpr int kScalesOfU4 = I::kIsShortInt4 ? 2 : 1;
    if constexpr (I::kIsInt4) {
      if (!is_head || gemv.format == kU4) return codes.template operator()<kU4, kScalesOfU4>();
    }
    if (gemv.scales == OfPiece) return codes.template operator()<kU8, 1>();
    return codes.template operator()<kU8, 0>();
  } else if constexpr (I::kIsProducts) {
    if (gemv.format == kU4) return products.template operator()<kU4, 32, true>();
    return products.template operator()<StepFormat::U6, 16, false>();
  } else {
    switch (gemv.format) {
      case StepFormat::F16:
        if constexpr (I::kTokens == 1) return floats.template operator()<false>();
        return;
      case StepFormat::BF16:
        if constexpr (I::kTokens == 1) return floats.template operator()<true>();
        return;
      case kU4:
        if (gemv.scales == OfRow) return codes.template operator()<kU4, 0>();
        if (gemv.scales == OfPiece) return codes.template operator()<kU4, 1>();
        if (gemv.scales == OfHalfPiece) return codes.template operator()<kU4, 2>();
        if constexpr (I::kIsMixed) {
          if (gemv.scales == ProductsMins) return products.template operator()<kU4, 32, true>();
          if (gemv.scales == OfPieceMins) return codes_apart.template operator()<kU4, 1, true>();
          return codes_apart.template operator()<kU4, 2, true>();
        }
        return;  // StepWeights::Products and Mixed have them
      case kU8:
        if (gemv.scales == OfRow) return codes.template operator()<kU8, 0>();
        if constexpr (I::kIsMixed) {
          if (gemv.has_mins()) return codes_apart.template operator()<kU8, 1, true>();
        }
        return codes.template operator()<kU8, 1>();
      default:
        break;
    }
  }
  if constexpr (I::kIsMixed) {
    if (gemv.format == StepFormat::U2) {
      return products.template operator()<StepFormat::U2, 16, true>();
    }
    if (gemv.format == StepFormat::U3) {
      return products.template operator()<StepFormat::U3, 16, false>();
    }
    if (gemv.format == StepFormat::U5) {
      return products.template operator()<StepFormat::U5, 32, true>();
    }
    if (gemv.format == StepFormat::U5Short) {
      return products.template operator()<StepFormat::U5Short, 32, true>();
    }
    if (gemv.format == StepFormat::U6) {
      return products.template operator()<StepFormat::U6, 16, false>();
    }
    if (gemv.scales == OfHalfPiece) {
      return codes_apart.template operator()<StepFormat::Table, 2, false>();
    }
    return products.template operator()<StepFormat::Table, 32, false>();
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
// The same for sums that may be those of multiply_rows.
template <typename I>
__device__ inline float sum_of_row(const StepGemv& gemv, const float* scratch, int row) {
  if (!I::kIsFloat || !gemv.has_several_rows()) return sum_of_warps(scratch, row);
  static_assert(row_slices(kFloatRows) == 2 && row_slices(2) == 4);
  const auto slice = [&](int i) { return scratch[i * kStepMaxRows + row]; };
  const float sum = slice(0) + slice(1);
  return gemv.stage_rows_log == kFloatRowsLog ? sum : sum + slice(2) + slice(3);
}

}  // namespace minfer::cuda
