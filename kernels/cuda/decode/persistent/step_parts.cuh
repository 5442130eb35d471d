#pragma once

#include "kernels/cuda/decode/persistent/step_exchange.cuh"
#include "kernels/cuda/decode/persistent/step_product.cuh"
#include "kernels/cuda/matvec/epilogue.cuh"

// Gate/up tile pairs that are left over when all blocks have the same number of pairs are split
// over K: several blocks each multiply a part, which is a range of the pair's stages. A block
// multiplies its part before its own pairs. Blocks with another part than the first send its sums
// to the block with the first part, which adds them after it has multiplied its own pairs, when
// they have long been there. It adds in the order of the parts.
//
// Reuse is safe: a block rewrites these words one layer later, after reading all of `hidden`, which
// includes the rows computed from them.
namespace minfer::cuda {

constexpr int kPartWarp = kStepWarps - 1;  // adds the parts; a lane has a row: 16 of gate, 16 of up
static_assert(kPartWords * 4 == 2 * kTileRows);
static_assert((kStepMaxParts - 1) * kPartWords == 32, "a lane asks for one word");
static_assert(kStepMaxRows / 2 <= 32 * kPartWarp, "no rows of whole pairs in the last warp");

// The flagged words of all parts of the block's pair but the first, one part after the other.
__device__ inline uint4* part_words(const StepParams& p, const StepProduct& product) {
  const int pair = product.part.tile - product.share.n_tiles;
  return p.words.gate_up_parts + pair * (product.n_parts - 1) * kPartWords;
}

// Whether this warp adds the parts of a pair.
__device__ inline bool adds_parts_of(const StepProduct& product) {
  return product.part.exists() && product.part.index == 0 && thread_index() / 32 == kPartWarp;
}

// Sends the sums of a part that is not the first; the warp has left its own in `scratch`. The last
// warp to arrive here sends the sums of all warps, so that no warp waits. `n_came` counts the warps
// that have arrived here, for all parts of the step until now.
__device__ inline void send_part(const StepParams& p, const StepProduct& product,
                                 const float* scratch, int* n_came, uint32_t epoch) {
  const int lane = thread_index() % 32;
  __threadfence_block();
  __syncwarp();
  int before = 0;
  if (lane == 0) before = atomicAdd(n_came, 1);
  if (__shfl_sync(~0u, before, 0) % kStepWarps != kStepWarps - 1) return;
  __threadfence_block();
  uint4* const to = part_words(p, product) + (product.part.index - 1) * kPartWords;
  publish(to, lane - thread_index(), 32, sum_of_warps(scratch, lane), epoch);
}

// Loads the lane's word of the other parts, without waiting for it. kPartWarp of the block with the
// first part calls it.
__device__ inline StepWord ask_parts(const StepParams& p, const StepProduct& product) {
  const int lane = thread_index() % 32;
  if (lane >= (product.n_parts - 1) * kPartWords) return {};
  return load_word(part_words(p, product) + lane);
}

// Adds the other parts to the first and publishes the pair's rows of silu(gate) * up. It is called
// after consumers_sync. `word` comes from ask_parts; `scale` is the factor of the lane's row;
// `scratch` holds the sums of the warps, then those of the other parts.
__device__ inline void add_parts(const StepParams& p, const StepProduct& product, float* scratch,
                                 StepWord word, float scale, uint32_t epoch) {
  const int lane = thread_index() % 32;
  float sum = sum_of_warps(scratch, lane);
  __syncwarp();
  if (lane < (product.n_parts - 1) * kPartWords) {
    const uint4* const from = part_words(p, product) + lane;
    for (Patience patience; !word.is_of(epoch); patience.try_again()) word = load_word(from);
    *reinterpret_cast<float4*>(scratch + lane / kPartWords * kStepMaxRows + lane % kPartWords * 4) =
        make_float4(word.at(0), word.at(1), word.at(2), word.at(3));
  }
  __syncwarp();
  for (int part = 1; part < product.n_parts; ++part) {
    sum += scratch[(part - 1) * kStepMaxRows + lane];
  }
  sum *= scale;
  const float up = __shfl_down_sync(~0u, sum, kTileRows);
  publish(p.words.hidden + product.part.tile * (kTileRows / 4), -32 * kPartWarp, kTileRows,
          precise::silu(sum) * up, epoch);
}

}  // namespace minfer::cuda
