#pragma once

#include "kernels/cuda/gemv/input.cuh"
#include "kernels/cuda/moe/expert_tiles.cuh"
#include "kernels/cuda/moe/expert_weights.cuh"

// How weights of experts, and rows of x, are copied to a stage.
namespace minfer::cuda {

// Starts copying, for the 64 columns of a step, what a record holds of its row tile: piece i of 16
// bytes of the scales, and of the mins, and every eighth piece of the upper bits from i on. `tile`:
// the shared address of the row tile; records: of all its chunks.
template <ExpertFormat kFormat>
__device__ inline void copy_of_record(uint32_t tile, const uint8_t* records, int i, int step,
                                      const ExpertGemmParams& p) {
  using Stage = ExpertStage<kFormat>;
  constexpr int kFactorBytes = kTileRows * 2, kNumberBytes = kTileRows * 4;  // of four units
  constexpr int kUnitsOfStep = kTileColumns / Stage::kUnit;
  const uint8_t* const record = records + step / 4 * p.record_bytes;
  if (i * 16 < Stage::kScaleBytes) {
    const int numbers = step % 4 * kUnitsOfStep / 4 * kNumberBytes;
    const uint8_t* const from = record + i * 16 + (i * 16 < kFactorBytes ? 0 : numbers);
    const uint32_t to = tile + uint32_t(Stage::kWordBytes + i * 16);
    ptx::copy_async_16(to, from);
    if (has_mins<kFormat>(p)) {
      ptx::copy_async_16(to + Stage::kScaleBytes, from + p.record_scale_bytes);
    }
  }
  if constexpr (Stage::kHighBits != 0) {
    const uint8_t* const from =
        record + p.record_bytes - high_chunk_bytes(Stage::kHighBits) + step % 4 * Stage::kHighBytes;
#pragma unroll
    for (int at = 0; at < Stage::kHighBytes; at += 128) {
      ptx::copy_async_16(tile + uint32_t(Stage::kHighAt + at + i * 16), from + at + i * 16);
    }
  }
}

// Starts copying 64 columns of the codes of one row tile: a lane's words of the step, `words`, to
// the tile in the stage.
template <ExpertFormat kFormat>
__device__ inline void copy_words(uint32_t tile, const uint8_t* words, int lane) {
  using Stage = ExpertStage<kFormat>;
  if constexpr (Stage::kBits == 2) {
    ptx::copy_async_8(tile + uint32_t(lane * 8), words);
  } else {
#pragma unroll
    for (int piece = 0; piece < Stage::kWordBytes; piece += kPieceBytes) {
      ptx::copy_async_16(tile + uint32_t(lane * 16 + piece), words + piece);
    }
  }
}

// Starts copying 64 columns of the codes of one row tile, with their scales and mins. A warp calls
// it; the pointers are those of the lane, but that of records.
template <ExpertFormat kFormat>
__device__ inline void copy_code_tile(uint8_t* tile, const uint8_t* words, const uint8_t* scales,
                                      const float* mins, int lane, int step,
                                      const ExpertGemmParams& p) {
  using Stage = ExpertStage<kFormat>;
  copy_words<kFormat>(ptx::shared_address(tile), words + Stage::words_at(step), lane);
  if constexpr (are_products(kFormat)) {
    if (lane < 8) copy_of_record<kFormat>(ptx::shared_address(tile), scales, lane, step, p);
    return;
  }
  const uint32_t to = ptx::shared_address(tile + lane * 16);
  const int unit = step * p.units_of_step >> p.step_shift;
  const int scale_bytes = scales_are_f32<kFormat>(p) ? 64 : 32;  // of a unit
  if (lane * 16 < p.units_of_step * scale_bytes) {
    ptx::copy_async_16(to + Stage::kWordBytes, scales + unit * scale_bytes);
  }
  if (has_mins<kFormat>(p) && lane * 16 < p.units_of_step * 64) {
    ptx::copy_async_16(to + Stage::kMinsAt, mins + unit * 16);
  }
}

// Copies the stages of one tile: 64 columns of the rows of x, and of the row tiles of each warp.
template <typename T, ExpertFormat kFormat, bool kSwiGlu>
struct ExpertFetch {
  using Stage = ExpertStage<kFormat>;
  static constexpr GemvWeights kWeights = weights_of(kFormat);
  static constexpr int kRowsOfThread = kExpertRows / (kExpertThreads / 8);

  const T* rows[kRowsOfThread];  // of x, that the thread copies 8 columns of; null: zeros
  const uint8_t *words[2], *scales[2];
  const float* mins[2];
  int row_8[2];  // floats: bytes from row g to row g + 8

  __device__ ExpertFetch(const ExpertTile& tile, const ExpertGemmParams& p) {
    const int thread = int(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const T* const x = static_cast<const T*>(p.x);
#pragma unroll
    for (int i = 0; i < kRowsOfThread; ++i) {
      const int place = tile.place + thread / 8 + i * (kExpertThreads / 8);
      rows[i] = nullptr;
      if (place < tile.end) {
        const int row = p.x_by_place ? place : p.pairs[place] / p.n_active;
        rows[i] = x + int64_t{row} * p.in_dim + thread % 8 * 8;
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const ExpertPlace& at = (kSwiGlu && r == 1 ? p.up_places : p.places)[tile.expert];
      int row_tile =
          tile.column_block * (kExpertWarps * (kSwiGlu ? 1 : 2)) + (kSwiGlu ? warp : 2 * warp + r);
      row_tile = min(row_tile, p.n_row_tiles - 1);  // results past the last one are not stored
      if constexpr (kWeights == GemvWeights::Float) {
        const int first = row_tile * kTileRows + lane / 4, last = p.out_dim - 1;
        const int row = min(first, last);
        words[r] =
            static_cast<const uint8_t*>(at.weights) + (int64_t{row} * p.in_dim + lane % 4 * 8) * 2;
        row_8[r] = (min(first + 8, last) - row) * p.in_dim * 2;
      } else {
        words[r] = static_cast<const uint8_t*>(at.weights) + int64_t{row_tile} * p.row_tile_bytes +
                   lane * 16;
        if constexpr (are_products(kFormat)) {
          scales[r] = static_cast<const uint8_t*>(at.scales) +
                      int64_t{row_tile} * (p.n_steps / 4) * p.record_bytes;
          continue;
        }
        const int64_t scale = int64_t{row_tile} * p.n_units * kTileRows;
        scales[r] = static_cast<const uint8_t*>(at.scales) +
                    scale * (scales_are_f32<kFormat>(p) ? 4 : 2) + lane * 16;
        if (has_mins<kFormat>(p)) mins[r] = at.mins + scale + lane * 4;
      }
    }
  }

  // Starts copying columns 64 step ... 64 step + 63.
  __device__ void begin(uint8_t* stage, int step, const ExpertGemmParams& p) const {
    const int thread = int(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const int column = step * 64 + thread % 8 * 8;
#pragma unroll
    for (int i = 0; i < kRowsOfThread; ++i) {
      const bool is_there = rows[i] != nullptr && column < p.in_dim;
      const T* const from = is_there ? rows[i] + step * 64 : static_cast<const T*>(p.x);
      uint8_t* const row = stage + (thread / 8 + i * (kExpertThreads / 8)) * Stage::kRowBytes;
      const int n_bytes = is_there ? 16 : 0, k = thread % 8 * 8;
      if constexpr (kWeights == GemvWeights::Float) {
        ptx::copy_async_16(ptx::shared_address(row + k * 2), from, n_bytes);
      } else if (is_there) {
        ptx::copy_async_8(ptx::shared_address(row + staged_column<true>(k) * 2), from);
        ptx::copy_async_8(ptx::shared_address(row + staged_column<true>(k + 4) * 2), from + 4);
      } else {
        *reinterpret_cast<uint2*>(row + staged_column<true>(k) * 2) = uint2{};
        *reinterpret_cast<uint2*>(row + staged_column<true>(k + 4) * 2) = uint2{};
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      uint8_t* const tile = stage + Stage::kXBytes + (warp * 2 + r) * Stage::kTileBytes;
      if constexpr (kWeights == GemvWeights::Float) {
        const uint32_t to = ptx::shared_address(tile + lane * 16);
        const uint8_t* const from = words[r] + step * 128;
        const int columns = p.in_dim - step * 64;
        const int first = lane % 4 * 8 < columns ? 16 : 0;
        const int second = lane % 4 * 8 + 32 < columns ? 16 : 0;
        ptx::copy_async_16(to, first > 0 ? from : words[r], first);
        ptx::copy_async_16(to + 512, second > 0 ? from + 64 : words[r], second);
        ptx::copy_async_16(to + 1024, first > 0 ? from + row_8[r] : words[r], first);
        ptx::copy_async_16(to + 1536, second > 0 ? from + row_8[r] + 64 : words[r], second);
      } else {
        copy_code_tile<kFormat>(tile, words[r], scales[r], mins[r], lane, step, p);
      }
    }
  }
};

}  // namespace minfer::cuda
