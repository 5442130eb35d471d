#pragma once

#include "kernels/cuda/gemv/experts.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/reduce.cuh"

namespace minfer::cuda {

// Orders experts as they are chosen, by score; what is no number comes last, with -infinity. 0 is
// below all.
__device__ inline uint32_t rank_of(float score) {
  const uint32_t bits = __float_as_uint(score == score ? score : -INFINITY);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

struct Choice {
  int32_t expert;
  float weight;
};

// choose_experts of at most 32 * kLaneScores experts, of which a lane keeps every 32nd. There is no
// branch for the last ones, so that all loads are in flight together, and the code is short: that
// of a decode step runs once, and waits for each line of instructions.
template <int kLaneScores>
__device__ inline Choice choose_of(const float* logits, const Router& router) {
  const int lane = int(threadIdx.x) % 32, n = router.n_experts;
  const auto for_each = [&](auto&& f) {
#pragma unroll
    for (int k = 0; k < kLaneScores; ++k) f(k, lane + 32 * k);
  };
  float scores[kLaneScores];
  for_each([&](int k, int e) { scores[k] = __ldcg(logits + min(e, n - 1)); });
  if (router.bias != nullptr) {
    for_each([&](int k, int e) { scores[k] += router.bias[min(e, n - 1)]; });
  }
  if (router.score == RouterScore::Softmax) {
    float top = -INFINITY, sum = 0;
    for_each([&](int k, int) { top = fmaxf(top, scores[k]); });
    top = warp_reduce(top, Max{});
    for_each([&](int k, int e) {
      scores[k] = expf(scores[k] - top);
      sum += e < n ? scores[k] : 0;
    });
    const float inverse = 1 / warp_reduce(sum, Sum{});
    for_each([&](int k, int) { scores[k] *= inverse; });
  } else {
    for_each([&](int k, int) { scores[k] = ptx::reciprocal_fast(1 + expf(-scores[k])); });
  }
  uint32_t ranks[kLaneScores];
  for_each([&](int k, int) { ranks[k] = rank_of(scores[k]); });
  if (router.correction != nullptr) {
    for_each(
        [&](int k, int e) { ranks[k] = rank_of(scores[k] + router.correction[min(e, n - 1)]); });
  }
  for_each([&](int k, int e) { ranks[k] = e < n ? ranks[k] : 0; });

  float total = 0, own = 0;
  int own_expert = 0;
  // Not unrolled, since this code runs once.
#pragma unroll 1
  for (int j = 0; j < router.n_active; ++j) {
    uint32_t best = 0;
    int best_expert = 0;
    float score = 0;
    for_each([&](int k, int e) {
      const bool is_better = ranks[k] > best;
      best = is_better ? ranks[k] : best;
      best_expert = is_better ? e : best_expert;
      score = is_better ? scores[k] : score;
    });
    const bool is_best = best == __reduce_max_sync(kAllLanes, best);
    const int expert = int(__reduce_min_sync(kAllLanes, is_best ? uint32_t(best_expert) : ~0u));
    const float s = __shfl_sync(kAllLanes, score, expert % 32);
    total += s;
    own = lane == j ? s : own;
    own_expert = lane == j ? expert : own_expert;
    for_each([&](int k, int e) { ranks[k] = e == expert ? 0 : ranks[k]; });
  }
  return {own_expert, (router.renormalizes ? own / total : own) * router.scale};
}

// Chooses the experts of one row, from its logits: lane j of the warp that calls it gets the j-th,
// at most 32. The logits are read once, from L2.
__device__ inline Choice choose_experts(const float* logits, const Router& router) {
  if (router.n_experts <= 128) return choose_of<4>(logits, router);
  return choose_of<int(kMaxCardExperts) / 32>(logits, router);
}

}  // namespace minfer::cuda
