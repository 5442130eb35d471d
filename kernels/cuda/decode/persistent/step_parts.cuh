#pragma once

#include "kernels/cuda/decode/persistent/step_exchange.cuh"
#include "kernels/cuda/decode/persistent/step_product.cuh"
#include "kernels/cuda/matvec/epilogue.cuh"

// Pairs of tiles of gate and up that are left over when all blocks have the same number of them:
// each goes to several blocks, which have a range of its stages, a part. They multiply that first
// and send the sums to the block of the first part, which takes them behind its own pairs, when
// they have long been there. It adds in the order of the parts.
//
// Words of parts are written again a layer later, by a block that has read all of `hidden` before:
// also the rows that are made of those words.
namespace minfer::cuda {

constexpr int kPartWarp = kStepWarps - 1;  // adds; lanes have rows: 16 of gate, 16 of up
static_assert(kPartWords * 4 == 2 * kTileRows);
static_assert((kStepMaxParts - 1) * kPartWords == 32, "a lane asks for one word");
static_assert(kStepMaxRows / 2 <= 32 * kPartWarp, "no rows of whole pairs in the last warp");

// Of all parts of the block's pair but the first, one behind the other.
__device__ inline uint4* part_words(const StepParams& p, const StepProduct& product) {
  const int pair = product.part.tile - product.share.n_tiles;
  return p.words.gate_up_parts + pair * (product.n_parts - 1) * kPartWords;
}

// Whether the warp adds the parts of a pair.
__device__ inline bool adds_parts_of(const StepProduct& product) {
  return product.part.exists() && product.part.index == 0 && thread_index() / 32 == kPartWarp;
}

// Sums of a part that is not the first, which the warp left in `scratch`: the last one that comes
// here sends those of all, so that none waits. `n_came`: of all parts until now, of all warps.
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

// The lane's word of the other parts, as far as it is there: kPartWarp of the first part.
__device__ inline StepWord ask_parts(const StepParams& p, const StepProduct& product) {
  const int lane = thread_index() % 32;
  if (lane >= (product.n_parts - 1) * kPartWords) return {};
  return load_word(part_words(p, product) + lane);
}

// Adds the other parts to the first and publishes the pair's rows of silu(gate) * up; behind
// consumers_sync. `word` from ask_parts, `scale` of the lane's row. `scratch`: sums of the warps,
// then of the other parts.
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
