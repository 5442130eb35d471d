#pragma once

#include "kernels/cuda/decode/step_exchange.cuh"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/reduce.cuh"

// The input of a product in shared memory, once a block.
namespace minfer::cuda {

// Staged for float weights: f32, of 64 columns first the lower fours of each eight, so that 8 lanes
// with eight columns each read 16 bytes without meeting at a bank.
__device__ inline int float_place(int column) {
  return (column & ~63) | (column & 4) << 3 | (column & 56) >> 1 | (column & 3);
}
// Staged for levels: of 32 columns, 16 h + 4 t + i at 8 t + 4 h + i (quant/packed_layout.h), twice:
// f16(x) and behind it f16(x - f16(x)), 22 bits together, for two columns of the instruction.
__device__ inline int half_place(int column) {
  return (column & ~31) | (column & 12) << 1 | (column & 16) >> 2 | (column & 3);
}
struct StepStage {
  uint8_t* input;
  float4* biases;  // of U4: [n_pieces, scales of a piece], what takes the zero level off
  float* scratch;  // [kStepWarps, kStepMaxRows]
  float* sums;     // [2 kStepWarps]
};

// What the product's input is made of: words of an epoch, or where there are none yet plain floats;
// and the norm's weight, or null.
struct StepSource {
  const uint4* words;
  const float* plain;
  const uint32_t* map;
  int n_words;
  uint32_t epoch;
  const void* norm_weight;
};

__device__ inline float norm_weight_at(const StepParams& p, const void* weight, int i) {
  return p.norm_is_bf16 ? to_float(static_cast<const __nv_bfloat16*>(weight)[i])
                        : to_float(static_cast<const __half*>(weight)[i]);
}

// The largest of 16 values, and their sum in one order.
__device__ inline float top_of(const float* x) {
  float top = x[0];
#pragma unroll
  for (int i = 1; i < kStepWarps; ++i) top = fmaxf(top, x[i]);
  return top;
}
__device__ inline float sum_of(const float* x) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kStepWarps; ++i) sum += x[i];
  return sum;
}

// Of U4's levels: the sums of 8 x over the columns of each scale, by the instruction that multiplies
// the levels, with 8 in place of each. The two warps that share pieces halve them.
__device__ inline void stage_biases(const StepProduct& product, const StepStage& at) {
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const auto* const row = reinterpret_cast<const __half*>(at.input) + lane % 4 * 8 +
                          (lane / 4 == 1 ? rest_offset(product.in_dim) : 0);
  constexpr uint32_t kLow = 0x80088008, kHigh = 0x80808080;  // -8 and -128 units of 2^-24
  for (int piece = warp; piece < product.n_pieces; piece += kStepWarps) {
    float sum[4] = {};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint4 x = *reinterpret_cast<const uint4*>(row + piece * 64 + j * 32);
      ptx::mma_m16n8k16<__half>(sum, kLow, kHigh, kLow, kHigh, x.x, x.y);
      ptx::mma_m16n8k16<__half>(sum, kLow, kHigh, kLow, kHigh, x.z, x.w);
      if (product.scales_per_piece == 2) {
        if (lane == 0) at.biases[piece * 2 + j] = make_float4(sum[0], sum[1], sum[2], sum[3]);
#pragma unroll
        for (float& s : sum) s = 0;
      }
    }
    if (product.scales_per_piece != 2 && lane == 0) {
      at.biases[piece] = make_float4(sum[0], sum[1], sum[2], sum[3]);
    }
  }
  asm volatile("bar.sync %0, 64;" ::"r"(2 + warp % 8) : "memory");
}

// kWords: of a thread, at most. Returns the factor of the product's sums: 1 / rms of a norm, and what the staged numbers and
// levels are in units of.
template <int kWords, bool kNorm>
__device__ inline float stage_input(const StepParams& p, const StepProduct& product,
                                    const StepSource& source, const StepStage& at) {
  const int thread = int(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const bool is_float = product.format <= StepFormat::BF16;
  uint32_t map[kWords];
  float weight[kNorm ? kWords : 1][3];
#pragma unroll
  for (int k = 0; k < kWords; ++k) {
    const int i = thread + k * kStepConsumers;
    map[k] = i < source.n_words ? __ldg(source.map + i) : 0;
  }
  if constexpr (kNorm) {
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
#pragma unroll
      for (int j = 0; j < 3; ++j) {
        weight[k][j] = j < int(map[k] & 3)
                           ? norm_weight_at(p, source.norm_weight, int(map[k] >> 2) + j)
                           : 1.0f;
      }
    }
  }
  StepWord words[kWords];
  if (kNorm && source.plain != nullptr) {
#pragma unroll
    for (int k = 0; k < kWords; ++k)
#pragma unroll
      for (int j = 0; j < 3; ++j)
        if (j < int(map[k] & 3)) words[k].at[j] = __ldcg(source.plain + (map[k] >> 2) + j);
  } else {
    read_words(words, source.words, source.n_words, source.epoch);
  }

  float squares = 0, top = 0;
#pragma unroll
  for (int k = 0; k < kWords; ++k) {
#pragma unroll
    for (int j = 0; j < 3; ++j) {
      if (j >= int(map[k] & 3)) continue;
      float& x = words[k].at[j];
      if constexpr (kNorm) {
        squares += x * x;
        x *= weight[k][j];
      }
      top = fmaxf(top, fabsf(x));
    }
  }
  if (kNorm) squares = warp_reduce(squares, Sum{});
  if (!is_float) top = warp_reduce(top, Max{});
  if (lane == 0) {
    at.sums[warp] = squares;
    at.sums[kStepWarps + warp] = top;
  }

  float unit = 1;
  if (is_float) {
    float* const to = reinterpret_cast<float*>(at.input);
#pragma unroll
    for (int k = 0; k < kWords; ++k)
#pragma unroll
      for (int j = 0; j < 3; ++j)
        if (j < int(map[k] & 3)) to[float_place(int(map[k] >> 2) + j)] = words[k].at[j];
  } else {
    consumers_sync();
    // A power of two that brings the largest into [1, 2): f16 holds it, and both halves' bits.
    const uint32_t exponent = __float_as_uint(top_of(at.sums + kStepWarps)) >> 23;
    const uint32_t bounded = min(max(exponent, 2u), 252u);
    unit = __uint_as_float(bounded << 23);
    const float inverse = __uint_as_float((254 - bounded) << 23);
    __half* const to = reinterpret_cast<__half*>(at.input);
    const int rest = rest_offset(product.in_dim);
    const auto put = [&](int column, float x) {
      const __half high = __float2half_rn(x);
      to[half_place(column)] = high;
      to[half_place(column) + rest] = __float2half_rn(x - __half2float(high));
    };
#pragma unroll
    for (int k = 0; k < kWords; ++k)
#pragma unroll
      for (int j = 0; j < 3; ++j)
        if (j < int(map[k] & 3)) put(int(map[k] >> 2) + j, words[k].at[j] * inverse);
    const int padded = (product.in_dim + 63) / 64 * 64;
    if (product.in_dim + thread < padded) put(product.in_dim + thread, 0);
  }
  consumers_sync();
  if (product.format == StepFormat::U4) {
    stage_biases(product, at);
    unit *= 0x1p24f;
  }
  if (kNorm) unit *= rsqrtf(sum_of(at.sums) / float(product.in_dim) + p.eps);
  return unit;
}

}  // namespace minfer::cuda
