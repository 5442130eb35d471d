#pragma once

#include "kernels/cuda/decode/persistent/step_exchange.cuh"
#include "kernels/cuda/decode/persistent/step_gemv.cuh"

// Gate/up tile pairs that are left over when all blocks have the same number of pairs are split
// along K: several blocks each multiply one K split, which is a range of the stages of the pair. A
// block multiplies its K split before its own pairs. Blocks with any K split but the first send its
// partial sums to the block with the first, which adds them after it has multiplied the pairs of
// its first round: by then they have long arrived. It adds them in the order of the K splits.
//
// Reuse is safe: a block rewrites these words one layer later, after reading all of `hidden`, which
// includes the rows computed from them.
namespace minfer::cuda {

// The last warp of those that publish rows of a token adds its K splits; it has no rows of whole
// pairs (round_tiles_of). A lane has a row: 16 of gate, 16 of up.
static_assert(kKSplitWords * 4 == 2 * kTileRows);
static_assert((kStepMaxKSplits - 1) * kKSplitWords == 32, "a lane asks for one word");

// The flagged words of all K splits of the block's pair but the first, one after another.
__device__ inline uint4* k_split_words(const StepParams& p, const StepGemv& gemv, int token) {
  const int pair = gemv.k_split.tile - gemv.slice.n_tiles;
  return p.words.gate_up_splits + token * p.words.of_token +
         pair * (gemv.n_k_splits - 1) * kKSplitWords;
}

// Whether a warp adds the K splits of a pair.
template <typename I>
__device__ inline bool adds_k_splits(const StepGemv& gemv, int warp) {
  constexpr int kWarpsOfToken = kStepWarps / I::kTokens;
  return gemv.k_split.exists() && gemv.k_split.index == 0 &&
         warp % kWarpsOfToken == kWarpsOfToken - 1;
}

// Sends the sums of a K split that is not the first; the warp has left its own in `scratch`. The
// last warp to arrive here sends the sums of all warps, so that no warp waits. `n_came` counts the
// arrivals of warps here since the step began.
template <typename I>
__device__ inline void send_k_split(const StepParams& p, const StepGemv& gemv, const float* scratch,
                                    int* n_came, uint32_t epoch) {
  const int lane = thread_index() % 32;
  __threadfence_block();
  __syncwarp();
  int before = 0;
  if (lane == 0) before = atomicAdd(n_came, 1);
  if (__shfl_sync(~0u, before, 0) % kStepWarps != kStepWarps - 1) return;
  __threadfence_block();
#pragma unroll
  for (int token = 0; token < I::kTokens; ++token) {
    uint4* const to = k_split_words(p, gemv, token) + (gemv.k_split.index - 1) * kKSplitWords;
    publish(to, lane - thread_index(), 32, sum_of_warps(scratch + token * kScratchFloats, lane),
            epoch);
  }
}

// Loads the lane's word of the other K splits, without waiting for it. A warp that adds K splits
// calls it.
__device__ inline StepWord load_k_splits(const StepParams& p, const StepGemv& gemv, int token) {
  const int lane = thread_index() % 32;
  if (lane >= (gemv.n_k_splits - 1) * kKSplitWords) return {};
  return load_word(k_split_words(p, gemv, token) + lane);
}

// Adds the other K splits to the first and publishes the pair's rows of act(gate) * up. It is
// called after consumers_sync. `word` comes from load_k_splits; `scale` and `bias` are those of the
// lane's row, `factor` that of the results; `scratch` holds the sums of the warps for the token,
// then those of the other K splits.
template <typename I>
__device__ inline void add_k_splits(const StepParams& p, const StepGemv& gemv, int token,
                                    float* scratch, StepWord word, float scale, float bias,
                                    float factor, uint32_t epoch) {
  const int lane = thread_index() % 32;
  float sum = sum_of_warps(scratch, lane);
  __syncwarp();
  const bool has_word = lane < (gemv.n_k_splits - 1) * kKSplitWords;
  StepWord words[] = {word};
  const uint4* const from[] = {k_split_words(p, gemv, token) + lane};
  await_each(words, from, has_word, epoch);
  word = words[0];
  if (has_word) {
    *reinterpret_cast<float4*>(scratch + lane / kKSplitWords * kStepMaxRows +
                               lane % kKSplitWords * 4) =
        make_float4(word.at(0), word.at(1), word.at(2), word.at(3));
  }
  __syncwarp();
  for (int part = 1; part < gemv.n_k_splits; ++part) {
    sum += scratch[(part - 1) * kStepMaxRows + lane];
  }
  sum = fmaf(sum, scale, bias);
  const float up = __shfl_down_sync(~0u, sum, kTileRows);
  uint4* const hidden = p.words.hidden + token * p.words.of_token;
  publish(hidden + gemv.k_split.tile * (kTileRows / 4), lane - thread_index(), kTileRows,
          activated<I>(p, sum) * up * factor, epoch);
}

}  // namespace minfer::cuda
