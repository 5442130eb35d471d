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
__device__ inline float2 floats_of(uint32_t two, bool is_bf16) {
  if (is_bf16) return {__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000u)};
  return __half22float2(*reinterpret_cast<const __half2*>(&two));
}

struct StepStage {
  uint8_t* input;
  float* scratch;  // [kStepWarps, kStepMaxRows]
  float* sums;     // [2 kStepWarps]
};

// What the product's input is made of: words of an epoch, or where there are none yet plain floats;
// and the norm's weight, half or bfloat16.
struct StepSource {
  const uint4* words;
  uint32_t epoch;
  const float* plain;
  const void* norm_weight;
  bool norm_is_bf16;
  float eps;
};

// The largest of the warps' values, and their sum in one order.
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

// Returns the factor of the product's sums: 1 / rms of a norm, and what the staged numbers and
// levels are in units of.
template <bool kNorm>
__device__ inline float stage_input(const StepProduct& product, const StepSource& source,
                                    const StepStage& at) {
  constexpr int kBatch = 2048 / kStepConsumers;  // words that a thread asks for at a time
  const int thread = thread_index(), lane = thread % 32, warp = thread / 32;
  const bool is_float = product.format <= StepFormat::BF16;
  const int in_dim = product.in_dim, n_words = in_dim / 4;
  const bool is_plain = kNorm && source.plain != nullptr;
  // Where the f32 of a word wait, or stay: halves want the largest of all first.
  const int rest = 2 * rest_offset(in_dim);
  const auto place_of = [&](int word) {
    return at.input + (is_float ? 4 * float_place(4 * word) : 2 * half_place(4 * word));
  };

  float squares = 0, top = 0;
#pragma unroll 1
  for (int first = thread; first < n_words; first += kBatch * kStepConsumers) {
    const int n_own = (n_words - first + kStepConsumers - 1) / kStepConsumers;
    StepWord words[kBatch];
    uint2 weight[kNorm ? kBatch : 1];
    if (!is_plain) ask_words<kStepConsumers>(words, source.words + first, n_own);
    if constexpr (kNorm) {
#pragma unroll
      for (int k = 0; k < kBatch; ++k)
        if (k < n_own)
          weight[k] =
              __ldg(static_cast<const uint2*>(source.norm_weight) + first + k * kStepConsumers);
    }
    if (!is_plain) {
      await_words<kStepConsumers>(words, source.words + first, n_own, source.epoch);
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (k >= n_own) break;
      const int word = first + k * kStepConsumers;
      float4 x = is_plain
                     ? __ldcg(reinterpret_cast<const float4*>(source.plain) + word)
                     : make_float4(words[k].at(0), words[k].at(1), words[k].at(2), words[k].at(3));
      if constexpr (kNorm) {
        const float2 low = floats_of(weight[k].x, source.norm_is_bf16);
        const float2 high = floats_of(weight[k].y, source.norm_is_bf16);
        squares = fmaf(x.x, x.x, fmaf(x.y, x.y, fmaf(x.z, x.z, fmaf(x.w, x.w, squares))));
        x = make_float4(x.x * low.x, x.y * low.y, x.z * high.x, x.w * high.y);
      }
      top = fmaxf(top, fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w))));
      if (is_float) {
        *reinterpret_cast<float4*>(place_of(word)) = x;
      } else {
        *reinterpret_cast<float2*>(place_of(word)) = {x.x, x.y};
        *reinterpret_cast<float2*>(place_of(word) + rest) = {x.z, x.w};
      }
    }
  }
  if (kNorm) squares = warp_reduce(squares, Sum{});
  if (!is_float) top = warp_reduce(top, Max{});
  if (lane == 0) {
    at.sums[warp] = squares;
    at.sums[kStepWarps + warp] = top;
  }

  float unit = 1;
  if (!is_float) {
    consumers_sync();
    // A power of two that brings the largest into [1, 2): f16 holds it, and both halves' bits.
    const uint32_t exponent = __float_as_uint(top_of(at.sums + kStepWarps)) >> 23;
    const uint32_t bounded = min(max(exponent, 2u), 252u);
    unit = __uint_as_float(bounded << 23);
    const float inverse = __uint_as_float((254 - bounded) << 23);
    struct alignas(8) Four {
      __half at[4];
    };
#pragma unroll 4
    for (int word = thread; word < n_words; word += kStepConsumers) {
      auto* const first = reinterpret_cast<float2*>(place_of(word));
      auto* const second = reinterpret_cast<float2*>(place_of(word) + rest);
      const float x[4] = {first->x * inverse, first->y * inverse, second->x * inverse,
                          second->y * inverse};
      Four high, low;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        high.at[i] = __float2half_rn(x[i]);
        low.at[i] = __float2half_rn(x[i] - __half2float(high.at[i]));
      }
      *reinterpret_cast<Four*>(first) = high;
      *reinterpret_cast<Four*>(second) = low;
    }
    const int padding = (in_dim + 63) / 64 * 64 - in_dim;
    if (thread < padding) {
      __half* const to = reinterpret_cast<__half*>(at.input) + half_place(in_dim + thread);
      to[0] = to[rest / 2] = __half(0);
    }
  }
  consumers_sync();
  if (product.format == StepFormat::U4) unit *= 0x1p24f;
  if (kNorm) unit *= rsqrtf(sum_of(at.sums) / float(in_dim) + source.eps);
  return unit;
}

}  // namespace minfer::cuda
