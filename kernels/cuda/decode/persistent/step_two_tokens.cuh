#pragma once

#include "kernels/cuda/decode/persistent/step_input.cuh"

// Stages the input of a linear layer for two tokens of one sequence, as digits. Words of
// kPartColumns columns of both are asked for together, so that a block waits for L2 once for both.
namespace minfer::cuda {

// The columns of a linear layer's input that are staged at once.
struct StepColumns {
  int first, n;
  int stride;  // digit_stride()
};

// Leaves the sum of the squares that all lanes of a warp have, for each token: one half of the warp
// adds those of the first, the other those of the second.
__device__ inline void store_squares(const float (&sums)[2], float (*squares)[kStepWarps]) {
  const int lane = thread_index() % 32, half = lane / 16;
  float sum = half == 0 ? sums[0] : sums[1];
  sum += __shfl_xor_sync(~0u, half == 0 ? sums[1] : sums[0], 16);
#pragma unroll
  for (int d = 8; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
  if (lane % 16 == 0) squares[half][thread_index() / 32] = sum;
}

// Stages the warp's columns, up to kPartColumns of all warps.
//   source   of the first token; norm_weight is null if the layer has no norm
//   squares  the sums of the warps' squares before the norm's weight, for each token
template <typename I>
__device__ __forceinline__ void stage_at_once(const StepParams& p, StepFormat format,
                                              const StepColumns& columns, const StepSource& source,
                                              uint8_t* input, float (*squares)[kStepWarps],
                                              float (&unit)[I::kTokens]) {
  constexpr auto kPlace = own_word<false>;
  constexpr int kTokens = I::kTokens, kBatch = kPartColumns / 4 / kStepConsumers;
  const bool by_64 = format != StepFormat::U8, has_norm = source.norm_weight != nullptr;
  const int n_padded = (columns.n + 63) / 64 * 16;  // missing columns are zeros
  // These are the only formats here: most of first_own_word is for others.
  const int first = first_own_word(by_64 ? StepFormat::U4 : StepFormat::U8);
  const int n_left = columns.n / 4 - first;
  uint2 weight[kBatch];
  load_weights<kPlace>(weight, source.norm_weight, first, n_left);
  StepWord words[kTokens * kBatch];
  if (source.plain != nullptr) {
#pragma unroll
    for (int i = 0; i < kTokens * kBatch; ++i) {
      const int word = first + kPlace(i % kBatch);
      words[i] = {};
      if (word < columns.n / 4) words[i] = load_plain(source.plain + i / kBatch * p.dim + 4 * word);
    }
  } else {
    await_words<kPlace, kTokens>(words, source.words + columns.first / 4 + first, n_left,
                                 source.epoch, p.words.of_token);
#pragma unroll
    for (StepWord& word : words) word.drop_epoch();
  }
  if (has_norm) {
    float sums[kTokens] = {};
#pragma unroll
    for (int i = 0; i < kTokens * kBatch; ++i) {
      weigh_columns(words[i].bits, weight[i % kBatch], source.norm_is_bf16, sums[i / kBatch]);
    }
    store_squares(sums, squares);
  }
  auto* const place = reinterpret_cast<uint32_t*>(input + digit_place(first, by_64));
#pragma unroll
  for (int token = 0; token < kTokens; ++token) {
    LargestMagnitude top;
#pragma unroll
    for (int k = 0; k < kBatch; ++k) top.add(words[token * kBatch + k].bits);
    const FixedPoint fixed = top.fixed_point();
    unit[token] = fixed.unit;
    uint32_t* const to = place + token * (p.token_stride / 4);
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (kPlace(k) >= n_padded - first) break;
      store_digits(to + kPlace(k), columns.stride / 4, words[token * kBatch + k].bits, fixed,
                   by_64);
    }
  }
}

// The same for more columns of a layer with a norm, one token after the other: registers have no
// room for both.
template <typename I>
__device__ __forceinline__ void stage_in_turns(const StepParams& p, const StepGemv& gemv,
                                               StepSource source, uint8_t* input,
                                               float (*squares)[kStepWarps],
                                               float (&unit)[I::kTokens]) {
#pragma unroll 1
  for (int token = 0; token < I::kTokens; ++token) {
    float own_unit;
    float sum =
        stage_digits<true, kStepNormWords>(gemv, source, input + token * p.token_stride, own_unit);
    sum = warp_reduce(sum, Sum{});
    if (thread_index() % 32 == 0) squares[token][thread_index() / 32] = sum;
    source.words += p.words.of_token;
    if (source.plain != nullptr) source.plain += p.dim;
    unit[0] = unit[1];  // no register has an index that varies
    unit[1] = own_unit;
  }
}

// Stages what a warp multiplies from a stage on: of input in parts the part that begins there, else
// all columns. It is called at one place, so that the code is there once.
template <typename I>
__device__ __forceinline__ void stage_tokens(const StepParams& p, const StepGemv& gemv,
                                             const StepSource& source, int first_stage,
                                             bool in_parts, uint8_t* input,
                                             float (*squares)[kStepWarps],
                                             float (&unit)[I::kTokens]) {
  const int first = in_parts ? first_stage * stage_columns(gemv.format) : 0;
  const int n = min(gemv.in_dim - first, kPartColumns);
  if (in_parts || gemv.in_dim <= kPartColumns) {
    const StepColumns columns{first, n, digit_stride(min(gemv.in_dim, kPartColumns))};
    stage_at_once<I>(p, gemv.format, columns, source, input, squares, unit);
  } else {
    stage_in_turns<I>(p, gemv, source, input, squares, unit);
  }
  __syncwarp();
}

}  // namespace minfer::cuda
