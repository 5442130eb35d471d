#pragma once

#include "kernels/cuda/decode/step_input.cuh"
#include "kernels/cuda/decode/step_ring.cuh"
#include "kernels/cuda/quant/packed_layout.h"

// Products of the staged input with tiles of weights as they come through the ring. Each warp has
// the same columns of every stage, and leaves its sums of a row in scratch[warp][row].
namespace minfer::cuda {

// What the products read again and again.
struct StepShape {
  int n_stages, n_pieces, in_dim, unit_shift;
};

struct StepCursor {
  int slot = 0, parity = 0;

  // f(memory of the next kN stages), which are then free.
  template <int kN, typename F>
  __device__ void take(const StepRing& ring, F f) {
    const uint8_t* slots[kN];
    uint64_t* empty[kN];
#pragma unroll
    for (int k = 0; k < kN; ++k) {
      ptx::mbarrier_wait(ring.full + slot, parity);
      slots[k] = ring.slots + slot * ring.slot_bytes;
      empty[k] = ring.empty + slot;
      if (++slot == ring.n_slots) {
        slot = 0;
        parity ^= 1;
      }
    }
    f(slots);
    __syncwarp();
    if (thread_index() % 32 == 0) {
#pragma unroll
      for (int k = 0; k < kN; ++k) ptx::mbarrier_arrive(empty[k]);
    }
  }
};

// Tiles of 4 rows; a stage is 4096 columns of one, of which each warp has its share: lane l columns
// 8 l
// ... of each 256. f32 products and sums.
template <bool kBf16>
__device__ inline void multiply_floats(const StepShape& shape, const StepRing& ring,
                                       const StepStage& at, StepCursor& cursor, int n_tiles) {
  const int lane = thread_index() % 32, warp = thread_index() / 32;
  const int own_column = warp * (kStageColumns / kStepWarps) + lane * 8;
  const float* const x = reinterpret_cast<const float*>(at.input) + float_place(own_column);
  float* const to = at.scratch + warp * kStepMaxRows;
  for (int tile = 0; tile < n_tiles; ++tile) {
    float sum[kFloatRows] = {};
    for (int stage = 0; stage < shape.n_stages; ++stage) {
      cursor.take<kFloatRows>(ring, [&](const uint8_t* const(&rows)[kFloatRows]) {
        const int first = stage * kStageColumns;
#pragma unroll
        for (int k = 0; k < kStageColumns / kStepWarps / 256; ++k) {
          const int column = own_column + k * 256;
          if (first + column >= shape.in_dim) break;
          const float4 low = *reinterpret_cast<const float4*>(x + first + k * 256);
          const float4 high = *reinterpret_cast<const float4*>(x + first + k * 256 + 32);
#pragma unroll
          for (int r = 0; r < kFloatRows; ++r) {
            const uint4 w = *reinterpret_cast<const uint4*>(rows[r] + 2 * column);
            const float2 w0 = floats_of(w.x, kBf16), w1 = floats_of(w.y, kBf16);
            const float2 w2 = floats_of(w.z, kBf16), w3 = floats_of(w.w, kBf16);
            sum[r] = fmaf(w0.x, low.x, sum[r]);
            sum[r] = fmaf(w0.y, low.y, sum[r]);
            sum[r] = fmaf(w1.x, low.z, sum[r]);
            sum[r] = fmaf(w1.y, low.w, sum[r]);
            sum[r] = fmaf(w2.x, high.x, sum[r]);
            sum[r] = fmaf(w2.y, high.y, sum[r]);
            sum[r] = fmaf(w3.x, high.z, sum[r]);
            sum[r] = fmaf(w3.y, high.w, sum[r]);
          }
        }
      });
    }
    // Lanes of each eight take a row: first halves, then quarters of the warp swap what the other
    // one keeps.
    const bool upper = lane & 16, odd = lane & 8;
    const float a = (upper ? sum[2] : sum[0]) + __shfl_xor_sync(~0u, upper ? sum[0] : sum[2], 16);
    const float b = (upper ? sum[3] : sum[1]) + __shfl_xor_sync(~0u, upper ? sum[1] : sum[3], 16);
    float total = (odd ? b : a) + __shfl_xor_sync(~0u, odd ? a : b, 8);
#pragma unroll
    for (int d = 4; d > 0; d /= 2) total += __shfl_xor_sync(~0u, total, d);
    if (lane % 8 == 0) to[tile * kFloatRows + lane / 8] = total;
  }
}

// A piece of U4, 64 columns: `w` the lane's 16 bytes as levels in f16's smallest numbers (row g in
// units of 2^-24, row g + 8 of 2^-20), x the lane's staged input. sum: rows g and g + 8, columns of
// f16(x) and of its rest in lanes with t = 0.
__device__ inline void multiply_levels(float (&sum)[4], uint32_t w0, uint32_t w1, const uint4& x) {
  constexpr uint32_t kLow = 0x000f000f, kHigh = 0x00f000f0;
  const uint32_t v0 = w0 >> 8, v1 = w1 >> 8;
  ptx::mma_m16n8k16<__half>(sum, w0 & kLow, w0 & kHigh, v0 & kLow, v0 & kHigh, x.x, x.y);
  ptx::mma_m16n8k16<__half>(sum, w1 & kLow, w1 & kHigh, v1 & kLow, v1 & kHigh, x.z, x.w);
}

// kTiles tiles of 16 rows of U4 levels.
template <int kScales, int kTiles>
__device__ inline void multiply_u4(const StepShape& shape, const StepRing& ring,
                                   const StepStage& at, StepCursor& cursor, int tile) {
  const int lane = thread_index() % 32, warp = thread_index() / 32, g = lane / 4, t = lane % 4;
  const auto* const x =
      reinterpret_cast<const __half*>(at.input) + t * 8 + (g == 1 ? rest_offset(shape.in_dim) : 0);
  const int pieces_shift = shape.unit_shift - 6;
  float total[kTiles][4] = {};
  for (int stage = 0; stage < shape.n_stages; ++stage) {
    cursor.take<kTiles>(ring, [&](const auto& slots) {
#pragma unroll
      for (int k = 0; k < kStagePieces / kStepWarps; ++k) {
        const int in_stage = warp + kStepWarps * k, piece = stage * kStagePieces + in_stage;
        if (piece >= shape.n_pieces) break;
        const uint4 x0 = *reinterpret_cast<const uint4*>(x + piece * 64);
        const uint4 x1 = *reinterpret_cast<const uint4*>(x + piece * 64 + 32);
        // What takes the zero level off: the sums with 8 in place of each level.
        constexpr uint32_t kEight = 0x80088008, kEightUp = 0x80808080;  // -8 in units of each row
        float zero[2][4] = {};
        auto& second_zero = zero[kScales == 2 ? 1 : 0];
        ptx::mma_m16n8k16<__half>(zero[0], kEight, kEightUp, kEight, kEightUp, x0.x, x0.y);
        ptx::mma_m16n8k16<__half>(zero[0], kEight, kEightUp, kEight, kEightUp, x0.z, x0.w);
        ptx::mma_m16n8k16<__half>(second_zero, kEight, kEightUp, kEight, kEightUp, x1.x, x1.y);
        ptx::mma_m16n8k16<__half>(second_zero, kEight, kEightUp, kEight, kEightUp, x1.z, x1.w);
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
          const uint4 w =
              *reinterpret_cast<const uint4*>(slots[j] + in_stage * kPieceBytes + lane * 16);
          const auto* const scales = reinterpret_cast<const __half2*>(slots[j] + kStageBytes) + g;
          const auto add = [&](const float(&sum)[4], const float(&less)[4], int unit) {
            const float2 f = kScales == 0 ? float2{1, 1} : __half22float2(scales[unit * 8]);
            total[j][0] = fmaf(sum[0] + less[0], f.x, total[j][0]);
            total[j][1] = fmaf(sum[1] + less[1], f.x, total[j][1]);
            total[j][2] = fmaf(sum[2] + less[2], f.y, total[j][2]);
            total[j][3] = fmaf(sum[3] + less[3], f.y, total[j][3]);
          };
          float sum[4] = {};
          multiply_levels(sum, w.x, w.y, x0);
          if constexpr (kScales == 2) {
            add(sum, zero[0], 2 * in_stage);
            float second[4] = {};
            multiply_levels(second, w.z, w.w, x1);
            add(second, zero[1], 2 * in_stage + 1);
          } else {
            multiply_levels(sum, w.z, w.w, x1);
            add(sum, zero[0], kScales == 0 ? 0 : in_stage >> pieces_shift);
          }
        }
      }
    });
  }
  float* const to = at.scratch + warp * kStepMaxRows + tile * kTileRows + g;
  if (t != 0) return;
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    to[j * kTileRows] = total[j][0] + total[j][1];
    to[j * kTileRows + 8] = (total[j][2] + total[j][3]) * 0x1p-4f;
  }
}

// Two levels of U8 as f16, less the zero level: 1024 + level is exact, and so is what is left.
template <int kSelector>
__device__ inline uint32_t two_levels(uint32_t word) {
  const uint32_t biased = __byte_perm(word, 0x64646464, kSelector);
  const __half2 x = __hsub2(*reinterpret_cast<const __half2*>(&biased), __half2half2(__half(1152)));
  return *reinterpret_cast<const uint32_t*>(&x);
}

// kTiles tiles of 16 rows of U8 levels; a piece is 32 columns.
template <int kScales, int kTiles>
__device__ inline void multiply_u8(const StepShape& shape, const StepRing& ring,
                                   const StepStage& at, StepCursor& cursor, int tile) {
  const int lane = thread_index() % 32, warp = thread_index() / 32, g = lane / 4, t = lane % 4;
  const auto* const x =
      reinterpret_cast<const __half*>(at.input) + t * 8 + (g == 1 ? rest_offset(shape.in_dim) : 0);
  const int pieces_shift = shape.unit_shift - 5;
  float total[kTiles][4] = {};
  for (int stage = 0; stage < shape.n_stages; ++stage) {
    cursor.take<kTiles>(ring, [&](const auto& slots) {
#pragma unroll
      for (int k = 0; k < kStagePieces / kStepWarps; ++k) {
        const int in_stage = warp + kStepWarps * k, piece = stage * kStagePieces + in_stage;
        if (piece >= shape.n_pieces) break;
        const uint4 v = *reinterpret_cast<const uint4*>(x + piece * 32);
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
          const uint4 w =
              *reinterpret_cast<const uint4*>(slots[j] + in_stage * kPieceBytes + lane * 16);
          float own[4] = {};
          float(&sum)[4] = kScales == 0 ? total[j] : own;
          ptx::mma_m16n8k16<__half>(sum, two_levels<0x4140>(w.x), two_levels<0x4342>(w.x),
                                    two_levels<0x4140>(w.y), two_levels<0x4342>(w.y), v.x, v.y);
          ptx::mma_m16n8k16<__half>(sum, two_levels<0x4140>(w.z), two_levels<0x4342>(w.z),
                                    two_levels<0x4140>(w.w), two_levels<0x4342>(w.w), v.z, v.w);
          if constexpr (kScales != 0) {
            const auto* const scales = reinterpret_cast<const __half2*>(slots[j] + kStageBytes) + g;
            const float2 f = __half22float2(scales[(in_stage >> pieces_shift) * 8]);
            total[j][0] = fmaf(own[0], f.x, total[j][0]);
            total[j][1] = fmaf(own[1], f.x, total[j][1]);
            total[j][2] = fmaf(own[2], f.y, total[j][2]);
            total[j][3] = fmaf(own[3], f.y, total[j][3]);
          }
        }
      }
    });
  }
  float* const to = at.scratch + warp * kStepMaxRows + tile * kTileRows + g;
  if (t != 0) return;
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    to[j * kTileRows] = total[j][0] + total[j][1];
    to[j * kTileRows + 8] = total[j][2] + total[j][3];
  }
}

// f<number of tiles>(first one), in groups as the ring has them.
template <typename F>
__device__ inline void each_group(int n_tiles, F f) {
  for (int tile = 0, n; tile < n_tiles; tile += n) {
    n = stream_group(n_tiles - tile);
    if (n == 4) f.template operator()<4>(tile);
    if (n == 2) f.template operator()<2>(tile);
    if (n == 1) f.template operator()<1>(tile);
  }
}

__device__ inline void multiply(const StepProduct& product, const StepRing& ring,
                                const StepStage& at, StepCursor& cursor, int n_tiles) {
  const StepShape shape{product.n_stages, product.n_pieces, product.in_dim, product.unit_shift};
  const auto u4 = [&]<int kScales>() {
    each_group(n_tiles, [&]<int kTiles>(int tile) {
      multiply_u4<kScales, kTiles>(shape, ring, at, cursor, tile);
    });
  };
  const auto u8 = [&]<int kScales>() {
    each_group(n_tiles, [&]<int kTiles>(int tile) {
      multiply_u8<kScales, kTiles>(shape, ring, at, cursor, tile);
    });
  };
  switch (product.format) {
    case StepFormat::F16:
      return multiply_floats<false>(shape, ring, at, cursor, n_tiles);
    case StepFormat::BF16:
      return multiply_floats<true>(shape, ring, at, cursor, n_tiles);
    case StepFormat::U4:
      if (product.scales_per_piece == 0) return u4.template operator()<0>();
      if (product.scales_per_piece == 1) return u4.template operator()<1>();
      return u4.template operator()<2>();
    case StepFormat::U8:
      if (product.scales_per_piece == 0) return u8.template operator()<0>();
      return u8.template operator()<1>();
  }
}

// The scale of a row that has one, asked for before the product begins. `row`: of the block's, from
// first_tile on.
__device__ inline float row_scale(const StepProduct& product, const StepLayer& layer, int phase,
                                  int first_tile, int row, int half_of_pair) {
  const StepTile tile = step_tile(product, phase, first_tile + row / kTileRows, half_of_pair);
  const int in_tile = row % kTileRows;
  const int index = tile.row_tile * kTileRows + in_tile % 8 * 2 + in_tile / 8;  // packed_layout.h
  const uint8_t* const scales = layer.matrices[first_matrix(phase) + tile.matrix].scales;
  return __half2float(reinterpret_cast<const __half*>(scales)[index]);
}

__device__ inline float sum_of_warps(const float* scratch, int row) {
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kStepWarps; ++w) sum += scratch[w * kStepMaxRows + row];
  return sum;
}

}  // namespace minfer::cuda
