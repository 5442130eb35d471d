#pragma once

#include "kernels/cuda/matvec/epilogue.cuh"
#include "kernels/cuda/matvec/fragments.cuh"
#include "kernels/cuda/matvec/input.cuh"
#include "kernels/cuda/quant/packed_layout.h"

namespace minfer::cuda {

// Where the warp is in the steps of its block: tile after tile, chunk after chunk, every 16th step.
struct MatvecCursor {
  int tile, step;

  // Past the end of a tile, on to the next one of the block.
  __device__ void settle(int n_steps) {
    while (step >= n_steps) {
      step -= n_steps;
      tile += int(gridDim.x);
    }
  }
};

// The part that holds a row tile; tile becomes its number there.
__device__ inline int part_of(const MatvecParams& p, int& tile, int step) {
  const int part = (step & p.pair_mask) + (tile >= p.ends[0]) + (tile >= p.ends[1]);
  tile -= p.begins[part];
  return part;
}

// Begins to copy what one step multiplies to a slot of the warp: each lane its own words, scales
// and mins behind them. Always one group of copies, empty behind the last step.
template <typename T, MatvecWeights kWeights, int kScales, bool kHalfScales>
__device__ inline void fetch_step(uint8_t* slot, const MatvecParams& p, MatvecCursor at) {
  const int lane = threadIdx.x % 32;
  if (at.tile < p.n_tiles) {
    const MatvecPartParams& part = p.parts[part_of(p, at.tile, at.step)];
    const int chunk = at.step >> p.pair_mask;
    uint8_t* const to = slot + lane * 16;
    if (kWeights == MatvecWeights::Float) {
      const int g = lane / 4, t = lane % 4, column = chunk * kTileColumns + t * 8;
      const T* const weights = static_cast<const T*>(part.weights) + column;
#pragma unroll
      for (int h = 0; h < 2; ++h) {  // rows behind the last one are not stored
        const int row = min(at.tile * kTileRows + g + 8 * h, part.out_dim - 1);
        const T* const from = weights + int64_t{row} * p.in_dim;
#pragma unroll
        for (int j = 0; j < 2; ++j) {  // of columns behind the last one nothing is read
          ptx::copy_async_16(to + (2 * h + j) * 512, from + 32 * j,
                             column + 32 * j < p.in_dim ? 16 : 0);
        }
      }
    } else {
      const int offset = chunk * kChunkBytes;
      const uint8_t* const from = static_cast<const uint8_t*>(part.weights) +
                                  int64_t{at.tile} * p.row_tile_bytes + (offset + lane * 16);
#pragma unroll
      for (int piece = 0; piece < 4; ++piece) {  // the last chunk may be short
        ptx::copy_async_16(to + piece * 512, from + piece * 512,
                           offset + piece * 512 < p.row_tile_bytes ? 16 : 0);
      }
      if (kScales != 0) {
        const int index = at.tile * p.n_chunks + chunk;
        const auto* const scales =
            static_cast<const uint8_t*>(part.scales) + int64_t{index} * p.scale_bytes + lane * 16;
        if (lane * 16 < p.scale_bytes) {  // F16: at most 512
          ptx::copy_async_16(to + kChunkBytes, scales);
        }
        if (!kHalfScales) {  // F32: at most 1024
          if (lane * 16 + 512 < p.scale_bytes) {
            ptx::copy_async_16(to + kChunkBytes + 512, scales + 512);
          }
          const auto* const mins = reinterpret_cast<const uint8_t*>(part.mins) +
                                   int64_t{index} * p.min_bytes + lane * 16;
#pragma unroll
          for (int i = 0; i < 1024; i += 512) {
            if (lane * 16 + i < p.min_bytes) {
              ptx::copy_async_16(to + kChunkBytes + p.scale_bytes + i, mins + i);
            }
          }
        }
      }
    }
  }
  ptx::copy_async_commit();
}

// total += the step in `slot` times the staged input; x is the lane's token there, at the chunk's
// first column and the lane's 16 bytes.
template <typename T, MatvecWeights kWeights, int kScales, bool kHalfScales>
__device__ inline void multiply_step(float (&total)[2][4], const uint8_t* slot, const T* x,
                                     const ChunkScales<kHalfScales>& scales, const Zero<T>& zero) {
  const auto words = [&](int piece) {
    return *reinterpret_cast<const uint4*>(slot + piece * 512 + threadIdx.x % 32 * 16);
  };
  const auto activations = [&](int tile, int half) {
    return *reinterpret_cast<const uint4*>(x + tile * kTileColumns + half * 32);
  };
  if constexpr (kWeights == MatvecWeights::Float) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint4 a = words(j), b = words(2 + j), v = activations(0, j);
      ptx::mma_m16n8k16<T>(total[0], a.x, b.x, a.y, b.y, v.x, v.y);
      ptx::mma_m16n8k16<T>(total[1], a.z, b.z, a.w, b.w, v.z, v.w);
    }
  } else {
    constexpr bool kNibbles = kWeights == MatvecWeights::U4;
#pragma unroll
    for (int tile = 0; tile < (kNibbles ? 4 : 2); ++tile) {
      float sum[4] = {};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint4 w = words(kNibbles ? tile : 2 * tile + j), v = activations(tile, j);
#pragma unroll
        for (int i = 0; i < 2; ++i) {  // instruction 2 j + i of the tile
          float(&to)[4] = kScales == 0 ? total[i] : sum;
          const uint32_t b0 = i == 0 ? v.x : v.z, b1 = i == 0 ? v.y : v.w;
          if constexpr (kNibbles) {
            multiply_nibbles<T>(to, j == 0 ? (i == 0 ? w.x : w.y) : (i == 0 ? w.z : w.w), b0, b1,
                                zero);
          } else {
            multiply_bytes<T>(to, i == 0 ? w.x : w.z, i == 0 ? w.y : w.w, b0, b1, zero);
          }
          if ((kScales == 4) || (kScales == 2 && i == 1) || (kScales == 1 && j + i == 2)) {
            scales.add(total[0], sum, tile * kTileColumns + j * 32 + i * 16);
            for (float& s : sum) s = 0;
          }
        }
      }
    }
  }
}

// out = epilogue(norm(x) wᵀ + bias) of 1 to 3 matrices w of one format; Epilogue in launchers.h
//
//   x, out    [n_tokens, in_dim] and [n_tokens, out_dim], row-major; at most 8 tokens
//   weights   floats row-major, or packed levels: packed_layout.h
//   launch    one block a multiprocessor, 16 warps; a block takes every gridDim.x-th tile of 16
//   rows
//             and its warps take turns along the columns, a chunk of 2 KB a step. Each lane copies
//             what it will multiply itself into its slots of a ring, before the predecessor is
//             done; two blocks, of this kernel and the next, fit on a multiprocessor
//   requires  in_dim % 8 == 0 for floats
//   maths     products exact, sums in f32 in an order that depends on in_dim alone: of a warp along
//             its chunks, scaled group by group, then over warps; one rounding at the store
//   moves     the weights with scales and mins once
template <typename T, MatvecWeights kWeights, int kScales, bool kHalfScales>
__global__ void __launch_bounds__(kMatvecThreads, 2)
    matvec_kernel(const __grid_constant__ MatvecParams p) {
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr bool kPacked = kWeights != MatvecWeights::Float;
  constexpr int kChunkColumns = !kPacked ? 64 : kWeights == MatvecWeights::U4 ? 256 : 128;
  ptx::let_successor_begin();

  const MatvecShared layout = matvec_shared(p);
  T* const staged = reinterpret_cast<T*>(shared + layout.input);
  float* const sums = reinterpret_cast<float*>(shared + layout.sums);
  float* const partials = reinterpret_cast<float*>(shared + layout.partials);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const bool pairs = p.epilogue == Epilogue::SwiGlu;
  const int n_steps = pairs ? 2 * p.n_chunks : p.n_chunks;  // of a tile

  uint8_t* const ring = shared + warp * p.n_stages * p.slot_bytes;
  MatvecCursor ahead{int(blockIdx.x), warp};
  ahead.settle(n_steps);
  const auto fetch = [&](uint8_t* slot) {
    fetch_step<T, kWeights, kScales, kHalfScales>(slot, p, ahead);
    ahead.step += kMatvecWarps;
    ahead.settle(n_steps);
  };
  for (int i = 0; i < p.n_stages; ++i) fetch(ring + i * p.slot_bytes);
  if (p.norm != InputNorm::None) {
    for (int k = int(threadIdx.x) * 64; k < p.in_dim; k += kMatvecThreads * 64) {
      ptx::prefetch_l2(static_cast<const T*>(p.norm_weight) + k);
    }
  }

  ptx::wait_for_predecessor();
  stage_input<T, kPacked>(staged, partials, p);
  __syncthreads();
  const bool has_mins = kPacked && !kHalfScales && p.parts[0].mins != nullptr;
  if (has_mins) {
    sum_units(sums, staged, p);
    __syncthreads();
  }

  const T* const x = staged + min(g, p.n_tokens - 1) * p.x_stride + t * 8;
  const Zero<T> zero(has_mins ? 0 : kWeights == MatvecWeights::U4 ? 8 : 128);
  ChunkScales<kHalfScales> scales{};
  scales.unit_shift = p.unit_shift;
  scales.sum_stride = p.sum_stride;
  scales.are_f32 = p.scales_are_f32;
  scales.has_mins = has_mins;

  int step = warp, round = 0, stage = 0;
  for (int tile = int(blockIdx.x); tile < p.n_tiles; tile += int(gridDim.x), ++round) {
    float total[2][4] = {};
    for (; step < n_steps; step += kMatvecWarps) {
      // n_stages groups are under way, the oldest is of this step.
      if (p.n_stages == 3) {
        ptx::copy_async_wait<2>();
      } else if (p.n_stages == 2) {
        ptx::copy_async_wait<1>();
      } else {
        ptx::copy_async_wait<0>();
      }
      __syncwarp();  // scales are copied by other lanes
      uint8_t* const slot = ring + stage * p.slot_bytes;
      const int chunk = step >> p.pair_mask;
      if (kScales != 0) {
        scales.scales = slot + kChunkBytes + g * (kHalfScales || !p.scales_are_f32 ? 4 : 8);
        if (has_mins) {
          scales.mins = slot + kChunkBytes + p.scale_bytes + g * 8;
          scales.sums = sums + (chunk * kChunkColumns >> p.unit_shift) * p.sum_stride +
                        min(2 * t, p.sum_stride - 2);
        }
      }
      multiply_step<T, kWeights, kScales>(total, slot, x + chunk * kChunkColumns, scales, zero);
      __syncwarp();  // all lanes have read the slot
      fetch(slot);
      stage = stage + 1 == p.n_stages ? 0 : stage + 1;
    }
    step -= n_steps;

    // [2 rounds][16 warps][token][16 rows]: those of one round are read while the next are written.
    float* const sent = partials + (round % 2) * kMatvecWarps * 16 * p.n_tokens;
    for (int i = 0; i < 2; ++i) {
      const int token = 2 * t + i;
      if (token < p.n_tokens) {
        float* const to = sent + (warp * p.n_tokens + token) * 16;
        to[g] = total[0][i] + total[1][i];
        to[g + 8] = total[0][2 + i] + total[1][2 + i];
      }
    }

    // The threads that finish this tile, other ones in each round, fetch what they need meanwhile.
    const int element = (int(threadIdx.x) - round * 128) & (kMatvecThreads - 1);
    const int token = element / 16;
    int row_tile = tile;
    const int first = part_of(p, row_tile, 0);
    const int row = row_tile * kTileRows + element % 16;
    const MatvecPartParams& part = p.parts[first];
    const bool finishes = token < p.n_tokens && row < part.out_dim;
    const int64_t at = int64_t{token} * part.out_dim + row;
    const int n_matrices = pairs ? 2 : 1;
    float bias[2] = {}, scale[2] = {1, 1}, min_of_row[2] = {}, residual = 0;
    if (finishes) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        if (m >= n_matrices) break;
        const MatvecPartParams& of = p.parts[first + m];
        if (of.bias != nullptr) bias[m] = to_float(static_cast<const T*>(of.bias)[row]);
        if (kPacked && kScales == 0) {  // scale_index() of the row
          const int64_t i = int64_t{row_tile} * kTileRows + row % 8 * 2 + row / 8 % 2;
          scale[m] = p.scales_are_f32 ? static_cast<const float*>(of.scales)[i]
                                      : to_float(static_cast<const __half*>(of.scales)[i]);
          if (has_mins) min_of_row[m] = of.mins[i];
        }
      }
      if (p.epilogue == Epilogue::Accumulate) residual = static_cast<const float*>(part.out)[at];
    }
    __syncthreads();
    if (!finishes) continue;
    float result[2] = {};  // of even and of odd warps: in pairs they have matrices of their own
#pragma unroll 1
    for (int w = 0; w < kMatvecWarps; w += 2) {
      const float* const from = sent + (w * p.n_tokens + token) * 16 + element % 16;
      result[0] += from[0];
      result[1] += from[p.n_tokens * 16];
    }
    if (!pairs) result[0] += result[1];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      if (m >= n_matrices) break;
      if (kPacked && kScales == 0) {
        result[m] *= scale[m];
        if (has_mins) {
          float sum_x = 0;
          for (int i = 0; i < p.n_sums; ++i) sum_x += sums[i * p.sum_stride + token];
          result[m] += min_of_row[m] * sum_x;
        }
      }
      result[m] += bias[m];
    }
    store_result<T>(part.out, at, p.out_is_f32, p.epilogue, result[0], result[1], residual);
  }
}

template <typename T>
auto matvec_kernel_of(MatvecWeights weights, int scales_in_tile, bool half_scales)
    -> void (*)(MatvecParams) {
  using enum MatvecWeights;
  if (weights == Float) return matvec_kernel<T, Float, 0, false>;
  const bool nibbles = weights == U4;
  switch (scales_in_tile) {
    case 0:
      return nibbles ? matvec_kernel<T, U4, 0, false> : matvec_kernel<T, U8, 0, false>;
    case 1:
      if (half_scales)
        return nibbles ? matvec_kernel<T, U4, 1, true> : matvec_kernel<T, U8, 1, true>;
      return nibbles ? matvec_kernel<T, U4, 1, false> : matvec_kernel<T, U8, 1, false>;
    case 2:
      if (half_scales)
        return nibbles ? matvec_kernel<T, U4, 2, true> : matvec_kernel<T, U8, 2, true>;
      return nibbles ? matvec_kernel<T, U4, 2, false> : matvec_kernel<T, U8, 2, false>;
    default:
      return nibbles ? matvec_kernel<T, U4, 4, false> : matvec_kernel<T, U8, 4, false>;
  }
}

}  // namespace minfer::cuda
