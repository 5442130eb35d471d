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
  // The stages of a tile, two at a time: f<their number>(their memory, the first one's index).
  template <typename F>
  __device__ void each_pair(const StepRing& ring, int n_stages, F f) {
    int stage = 0;
    for (; stage + 2 <= n_stages; stage += 2) {
      take<2>(ring, [&](const auto& slots) { f.template operator()<2>(slots, stage); });
    }
    if (stage < n_stages) {
      take<1>(ring, [&](const auto& slots) { f.template operator()<1>(slots, stage); });
    }
  }
};

// Tiles of 4 rows; a stage is 4096 columns of one, of which a warp has 512: lane l columns 8 l ... of
// each 256. f32 products and sums.
template <bool kBf16>
__device__ inline void multiply_floats(const StepShape& shape, const StepRing& ring,
                                       const StepStage& at, StepCursor& cursor, int n_tiles) {
  const int lane = thread_index() % 32, warp = thread_index() / 32;
  const int own_column = warp * 512 + lane * 8;
  const float* const x = reinterpret_cast<const float*>(at.input) + float_place(own_column);
  float* const to = at.scratch + warp * kStepMaxRows;
  for (int tile = 0; tile < n_tiles; ++tile) {
    float sum[kFloatRows] = {};
    for (int stage = 0; stage < shape.n_stages; ++stage) {
      cursor.take<kFloatRows>(ring, [&](const uint8_t* const (&rows)[kFloatRows]) {
        const int first = stage * kStageColumns;
#pragma unroll
        for (int k = 0; k < 2; ++k) {
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

// Tiles of 16 rows of U4 levels.
template <int kScales>
__device__ inline void multiply_u4(const StepShape& shape, const StepRing& ring,
                                   const StepStage& at, StepCursor& cursor, int n_tiles) {
  const int lane = thread_index() % 32, warp = thread_index() / 32, g = lane / 4, t = lane % 4;
  const auto* const x = reinterpret_cast<const __half*>(at.input) + t * 8 +
                        (g == 1 ? rest_offset(shape.in_dim) : 0);
  float* const to = at.scratch + warp * kStepMaxRows + g;
  const int pieces_shift = shape.unit_shift - 6;
  for (int tile = 0; tile < n_tiles; ++tile) {
    float total[4] = {};
    cursor.each_pair(ring, shape.n_stages, [&]<int kStages>(const auto& slots, int stage) {
#pragma unroll
      for (int k = 0; k < 2 * kStages; ++k) {
        const uint8_t* const slot = slots[k / 2];
        const int in_stage = warp + kStepWarps * (k % 2);
        const int piece = (stage + k / 2) * kStagePieces + in_stage;
        if (piece >= shape.n_pieces) break;
        const uint4 w = *reinterpret_cast<const uint4*>(slot + in_stage * kPieceBytes + lane * 16);
        const uint4 x0 = *reinterpret_cast<const uint4*>(x + piece * 64);
        const uint4 x1 = *reinterpret_cast<const uint4*>(x + piece * 64 + 32);
        const auto* const scales = reinterpret_cast<const __half2*>(slot + kStageBytes) + g;
        const auto add = [&](const float (&sum)[4], int unit) {
          const float2 f = kScales == 0 ? float2{1, 1} : __half22float2(scales[unit * 8]);
          total[0] = fmaf(sum[0], f.x, total[0]);
          total[1] = fmaf(sum[1], f.x, total[1]);
          total[2] = fmaf(sum[2], f.y, total[2]);
          total[3] = fmaf(sum[3], f.y, total[3]);
        };
        if constexpr (kScales == 2) {
          const float4 b0 = at.biases[2 * piece], b1 = at.biases[2 * piece + 1];
          float first[4] = {b0.x, b0.y, b0.z, b0.w}, second[4] = {b1.x, b1.y, b1.z, b1.w};
          multiply_levels(first, w.x, w.y, x0);
          multiply_levels(second, w.z, w.w, x1);
          add(first, 2 * in_stage);
          add(second, 2 * in_stage + 1);
        } else {
          const float4 b = at.biases[piece];
          float sum[4] = {b.x, b.y, b.z, b.w};
          multiply_levels(sum, w.x, w.y, x0);
          multiply_levels(sum, w.z, w.w, x1);
          add(sum, kScales == 0 ? 0 : in_stage >> pieces_shift);
        }
      }
    });
    if (t == 0) {
      to[tile * kTileRows] = total[0] + total[1];
      to[tile * kTileRows + 8] = (total[2] + total[3]) * 0x1p-4f;
    }
  }
}

// Two levels of U8 as f16, less the zero level: 1024 + level is exact, and so is what is left.
template <int kSelector>
__device__ inline uint32_t two_levels(uint32_t word) {
  const uint32_t biased = __byte_perm(word, 0x64646464, kSelector);
  const __half2 x = __hsub2(*reinterpret_cast<const __half2*>(&biased), __half2half2(__half(1152)));
  return *reinterpret_cast<const uint32_t*>(&x);
}

// Tiles of 16 rows of U8 levels; a piece is 32 columns.
template <int kScales>
__device__ inline void multiply_u8(const StepShape& shape, const StepRing& ring,
                                   const StepStage& at, StepCursor& cursor, int n_tiles) {
  const int lane = thread_index() % 32, warp = thread_index() / 32, g = lane / 4, t = lane % 4;
  const auto* const x = reinterpret_cast<const __half*>(at.input) + t * 8 +
                        (g == 1 ? rest_offset(shape.in_dim) : 0);
  float* const to = at.scratch + warp * kStepMaxRows + g;
  const int pieces_shift = shape.unit_shift - 5;
  for (int tile = 0; tile < n_tiles; ++tile) {
    float total[4][4] = {};
    cursor.each_pair(ring, shape.n_stages, [&]<int kStages>(const auto& slots, int stage) {
#pragma unroll
      for (int k = 0; k < 2 * kStages; ++k) {
        const uint8_t* const slot = slots[k / 2];
        const int in_stage = warp + kStepWarps * (k % 2);
        const int piece = (stage + k / 2) * kStagePieces + in_stage;
        if (piece >= shape.n_pieces) break;
        const uint4 w = *reinterpret_cast<const uint4*>(slot + in_stage * kPieceBytes + lane * 16);
        const uint4 v = *reinterpret_cast<const uint4*>(x + piece * 32);
        float own[4] = {};
        float(&sum)[4] = kScales == 0 ? total[k] : own;
        ptx::mma_m16n8k16<__half>(sum, two_levels<0x4140>(w.x), two_levels<0x4342>(w.x),
                                  two_levels<0x4140>(w.y), two_levels<0x4342>(w.y), v.x, v.y);
        ptx::mma_m16n8k16<__half>(sum, two_levels<0x4140>(w.z), two_levels<0x4342>(w.z),
                                  two_levels<0x4140>(w.w), two_levels<0x4342>(w.w), v.z, v.w);
        if constexpr (kScales != 0) {
          const auto* const scales = reinterpret_cast<const __half2*>(slot + kStageBytes) + g;
          const float2 f = __half22float2(scales[(in_stage >> pieces_shift) * 8]);
          total[k][0] = fmaf(own[0], f.x, total[k][0]);
          total[k][1] = fmaf(own[1], f.x, total[k][1]);
          total[k][2] = fmaf(own[2], f.y, total[k][2]);
          total[k][3] = fmaf(own[3], f.y, total[k][3]);
        }
      }
    });
    if (t == 0) {
      float low = 0, high = 0;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        low += total[k][0] + total[k][1];
        high += total[k][2] + total[k][3];
      }
      to[tile * kTileRows] = low;
      to[tile * kTileRows + 8] = high;
    }
  }
}

__device__ inline void multiply(const StepProduct& product, const StepRing& ring,
                                const StepStage& at, StepCursor& cursor, int n_tiles) {
  const StepShape shape{product.n_stages, product.n_pieces, product.in_dim, product.unit_shift};
  const int scales = product.scales_per_piece;
  switch (product.format) {
    case StepFormat::F16: return multiply_floats<false>(shape, ring, at, cursor, n_tiles);
    case StepFormat::BF16: return multiply_floats<true>(shape, ring, at, cursor, n_tiles);
    case StepFormat::U4:
      if (scales == 0) return multiply_u4<0>(shape, ring, at, cursor, n_tiles);
      if (scales == 1) return multiply_u4<1>(shape, ring, at, cursor, n_tiles);
      return multiply_u4<2>(shape, ring, at, cursor, n_tiles);
    case StepFormat::U8:
      if (scales == 0) return multiply_u8<0>(shape, ring, at, cursor, n_tiles);
      return multiply_u8<1>(shape, ring, at, cursor, n_tiles);
  }
}

}  // namespace minfer::cuda
