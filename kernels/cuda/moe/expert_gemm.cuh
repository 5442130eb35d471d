#pragma once

#include <type_traits>

#include "kernels/cuda/elementwise/activations.cuh"
#include "kernels/cuda/gemv/fragments.cuh"
#include "kernels/cuda/gemv/input.cuh"
#include "kernels/cuda/moe/expert_gemm.h"
#include "kernels/cuda/moe/expert_tiles.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/quant/code_four.cuh"

namespace minfer::cuda {

// Shared memory of the kernel: a ring of stages, each with 64 columns of the rows of x and of the
// weights, then where the tiles of each expert begin.
template <GemvWeights kWeights>
struct ExpertStage {
  // Bytes of one row tile (16 rows by 64 columns) of weights, and behind it of its scales and mins.
  static constexpr int kWordBytes = kWeights == GemvWeights::Float ? 2048
                                    : kWeights == GemvWeights::U8  ? 1024
                                                                   : 512;
  static constexpr int kScaleBytes = kWeights == GemvWeights::Float ? 0 : 256;
  static constexpr int kTileBytes = kWordBytes + 2 * kScaleBytes;
  // Rows of x are 192 bytes apart, 128 of them used: 16-byte reads of 2 rows by 4 lanes have no
  // bank conflicts.
  static constexpr int kRowBytes = 192, kXBytes = kExpertRows * kRowBytes;
  static constexpr int kBytes = kXBytes + kExpertWarps * 2 * kTileBytes;
};

// A lane's A fragments of one row tile and 32 columns: for instruction i, rows g and g + 8 of its
// columns 4 t to 4 t + 3 (of floats: 8 t + 4 i to 8 t + 4 i + 3).
using Fragments = uint32_t[2][4];

__device__ inline uint32_t pack_pair(float low, float high, __half) {
  return bits_of(__floats2half2_rn(low, high));
}
__device__ inline uint32_t pack_pair(float low, float high, __nv_bfloat16) {
  return bits_of(__floats2bfloat162_rn(low, high));
}

// Scale and minimum of one row for some columns.
struct RowScale {
  float scale, min;
};

// The values of two codes, rounded to T, with the roundings of dequantize_rows().
template <typename T>
__device__ inline uint32_t dequantize_pair(uint32_t low, uint32_t high, float zero, RowScale s,
                                           bool has_mins) {
  // 2^23 + code is exact, and so is what is left without 2^23 + zero.
  float a = __fmul_rn(__uint_as_float(0x4B000000u | low) - zero, s.scale);
  float b = __fmul_rn(__uint_as_float(0x4B000000u | high) - zero, s.scale);
  if (has_mins) {
    a = __fadd_rn(a, s.min);
    b = __fadd_rn(b, s.min);
  }
  return pack_pair(a, b, T{});
}

// The weights of one row tile in a stage, as a lane reads them.
template <typename T, GemvWeights kWeights>
struct StagedWeights {
  using Stage = ExpertStage<kWeights>;
  const uint8_t* tile;

  __device__ uint4 words(int piece) const {
    return *reinterpret_cast<const uint4*>(tile + piece * 512 + threadIdx.x % 32 * 16);
  }
  // Where the scales of rows g and g + 8 are, for instruction `at` of the four of a tile.
  __device__ static int pair_of_scales(int at, const ExpertGemmParams& p) {
    return (at * 16 >> p.unit_shift) * 8 + int(threadIdx.x) % 32 / 4;
  }
  __device__ void scales_of(RowScale (&of)[2], int at, const ExpertGemmParams& p) const {
    const uint8_t* const scales = tile + Stage::kWordBytes;
    const int pair = pair_of_scales(at, p);
    float2 scale, min{};
    if (p.scales_are_f32) {
      scale = *reinterpret_cast<const float2*>(scales + pair * 8);
    } else {
      scale = __half22float2(*reinterpret_cast<const __half2*>(scales + pair * 4));
    }
    if (p.has_mins) {
      min = *reinterpret_cast<const float2*>(scales + Stage::kScaleBytes + pair * 8);
    }
    of[0] = {scale.x, min.x};
    of[1] = {scale.y, min.y};
  }

  // The word of U4 for instruction i of a half, and the two words of U8; codes of a table as U8.
  __device__ static uint32_t nibbles_of(const uint4& w, int half, int i) {
    return half == 0 ? (i == 0 ? w.x : w.y) : (i == 0 ? w.z : w.w);
  }
  __device__ static uint2 bytes_of(const uint4& w, int half, int i, const ExpertGemmParams& p) {
    if constexpr (kWeights == GemvWeights::Table) return look_up(p.table, nibbles_of(w, half, i));
    return i == 0 ? uint2{w.x, w.y} : uint2{w.z, w.w};
  }

  // The scales of rows g and g + 8 for instruction `at`, and whether they are F16 numbers.
  __device__ bool half_scales_of(__half2& scales, int at, const ExpertGemmParams& p) const {
    const uint8_t* const from = tile + Stage::kWordBytes;
    const int pair = pair_of_scales(at, p);
    if (!p.scales_are_f32) {
      scales = *reinterpret_cast<const __half2*>(from + pair * 4);
      return true;
    }
    const float2 wide = *reinterpret_cast<const float2*>(from + pair * 8);
    scales = __floats2half2_rn(wide.x, wide.y);
    const float2 back = __half22float2(scales);
    return back.x == wide.x && back.y == wide.y;
  }

  // Codes with such scales, of a half's two instructions, and without minimums, two at a time:
  // their products are exact in f32, so that one rounding to half gives the same.
  __device__ void load_halves(Fragments& a, const uint4& w, int half, const __half2 (&scales)[2],
                              const ExpertGemmParams& p) const {
    constexpr bool kNibbles = kWeights == GemvWeights::U4;
    const __half2 zero = __float2half2_rn(1024.0f + (kNibbles ? 8 : 128));
    const __half2 high_zero = __float2half2_rn(64.0f + 8), sixteenth = __float2half2_rn(0.0625f);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const __half2 of_row[] = {__low2half2(scales[i]), __high2half2(scales[i])};
#pragma unroll
      for (int r = 0; r < 4; ++r) {  // as in load()
        __half2 centered;
        if constexpr (kNibbles) {
          const uint32_t word = nibbles_of(w, half, i) >> (8 * (r / 2));
          if (r % 2 == 0) {  // 1024 + code
            const uint32_t codes = ptx::mask_or<0x000F000F>(word, 0x64006400);
            centered = __hsub2(pair_of<__half2>(codes), zero);
          } else {  // 1024 + 16 code
            const uint32_t codes = ptx::mask_or<0x00F000F0>(word, 0x64006400);
            centered = __hsub2(__hmul2(pair_of<__half2>(codes), sixteenth), high_zero);
          }
        } else {
          const uint2 bytes = bytes_of(w, half, i, p);
          const uint32_t codes =
              __byte_perm(r < 2 ? bytes.x : bytes.y, 0x64646464, r % 2 == 0 ? 0x4140 : 0x4342);
          centered = __hsub2(pair_of<__half2>(codes), zero);
        }
        a[i][r] = bits_of(__hmul2(centered, of_row[r % 2]));
      }
    }
  }

  // Of 32 columns: the first or the second half of the stage.
  __device__ void load(Fragments& a, int half, const ExpertGemmParams& p) const {
    if constexpr (kWeights == GemvWeights::Float) {
      const uint4 upper = words(half), lower = words(2 + half);
      a[0][0] = upper.x;
      a[0][1] = lower.x;
      a[0][2] = upper.y;
      a[0][3] = lower.y;
      a[1][0] = upper.z;
      a[1][1] = lower.z;
      a[1][2] = upper.w;
      a[1][3] = lower.w;
    } else {
      const uint4 w = words(kWeights == GemvWeights::U8 ? half : 0);
      if constexpr (std::is_same_v<T, __half>) {
        if (!p.has_mins) {
          __half2 scales[2];
          const bool are_halves = half_scales_of(scales[0], half * 2, p);
          if (half_scales_of(scales[1], half * 2 + 1, p) && are_halves) {
            return load_halves(a, w, half, scales, p);
          }
        }
      }
      const float zero = 8388608.0f + float(p.has_mins ? 0 : kWeights == GemvWeights::U4 ? 8 : 128);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        RowScale s[2];
        scales_of(s, half * 2 + i, p);
#pragma unroll
        for (int r = 0; r < 4; ++r) {  // register r: row g + 8 (r % 2), columns from 2 (r / 2) on
          uint32_t low, high;
          if constexpr (kWeights == GemvWeights::U4) {
            const uint32_t nibbles = nibbles_of(w, half, i);
            low = nibbles >> (4 * r) & 15;
            high = nibbles >> (4 * r + 16) & 15;
          } else {
            const uint2 bytes = bytes_of(w, half, i, p);
            const uint32_t word = r < 2 ? bytes.x : bytes.y;
            low = word >> (r % 2 * 16) & 255;
            high = word >> (r % 2 * 16 + 8) & 255;
          }
          a[i][r] = dequantize_pair<T>(low, high, zero, s[r % 2], p.has_mins);
        }
      }
    }
  }
};

// Starts copying 64 columns of the codes of one row tile, with their scales and mins. A warp calls
// it; the pointers are those of the lane.
template <GemvWeights kWeights>
__device__ inline void copy_code_tile(uint8_t* tile, const uint8_t* words, const uint8_t* scales,
                                      const float* mins, int lane, int step,
                                      const ExpertGemmParams& p) {
  using Stage = ExpertStage<kWeights>;
  const uint32_t to = ptx::shared_address(tile + lane * 16);
  const uint8_t* const from = words + int64_t{step} * Stage::kWordBytes;
#pragma unroll
  for (int piece = 0; piece < Stage::kWordBytes; piece += 512) {
    ptx::copy_async_16(to + uint32_t(piece), from + piece);
  }
  const int unit = step * p.units_of_step >> p.step_shift;
  const int scale_bytes = p.scales_are_f32 ? 64 : 32;  // of a unit
  if (lane * 16 < p.units_of_step * scale_bytes) {
    ptx::copy_async_16(to + Stage::kWordBytes, scales + unit * scale_bytes);
  }
  if (p.has_mins && lane * 16 < p.units_of_step * 64) {
    ptx::copy_async_16(to + Stage::kWordBytes + Stage::kScaleBytes, mins + unit * 16);
  }
}

// Copies the stages of one tile: 64 columns of the rows of x, and of the row tiles of each warp.
template <typename T, GemvWeights kWeights, bool kSwiGlu>
struct ExpertFetch {
  using Stage = ExpertStage<kWeights>;
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
        const int64_t scale = int64_t{row_tile} * p.n_units * kTileRows;
        scales[r] =
            static_cast<const uint8_t*>(at.scales) + scale * (p.scales_are_f32 ? 4 : 2) + lane * 16;
        if (p.has_mins) mins[r] = at.mins + scale + lane * 4;
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
      const uint32_t to = ptx::shared_address(tile + lane * 16);
      if constexpr (kWeights == GemvWeights::Float) {
        const uint8_t* const from = words[r] + step * 128;
        const int columns = p.in_dim - step * 64;
        const int first = lane % 4 * 8 < columns ? 16 : 0;
        const int second = lane % 4 * 8 + 32 < columns ? 16 : 0;
        ptx::copy_async_16(to, first > 0 ? from : words[r], first);
        ptx::copy_async_16(to + 512, second > 0 ? from + 64 : words[r], second);
        ptx::copy_async_16(to + 1024, first > 0 ? from + row_8[r] : words[r], first);
        ptx::copy_async_16(to + 1536, second > 0 ? from + row_8[r] + 64 : words[r], second);
      } else {
        copy_code_tile<kWeights>(tile, words[r], scales[r], mins[r], lane, step, p);
      }
    }
  }
};

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
//   maths     codes are rounded to T after scale and minimum, as in dequantize_rows(); f32 sums
//             over k in order; one rounding at the store. A row's bits do not depend on the others
//   moves     the weights of the experts that have rows, once for each kExpertRows rows
template <typename T, GemvWeights kWeights, bool kSwiGlu>
__global__ void __launch_bounds__(kExpertThreads, 1)
    expert_gemm_kernel(const __grid_constant__ ExpertGemmParams p) {
  using Stage = ExpertStage<kWeights>;
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
    const ExpertFetch<T, kWeights, kSwiGlu> fetch(tile, p);
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
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Fragments a[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          StagedWeights<T, kWeights>{own + r * Stage::kTileBytes}.load(a[r], half, p);
        }
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

// make.operator()<W>(), with W = weights known at compile time.
template <typename Make>
ExpertGemmKernel with_weights(GemvWeights weights, const Make& make) {
  switch (weights) {
    case GemvWeights::U4:
      return make.template operator()<GemvWeights::U4>();
    case GemvWeights::U8:
      return make.template operator()<GemvWeights::U8>();
    case GemvWeights::Table:
      return make.template operator()<GemvWeights::Table>();
    default:
      return make.template operator()<GemvWeights::Float>();
  }
}

}  // namespace minfer::cuda
