#pragma once

#include "kernels/cuda/gemv/experts.h"
#include "kernels/cuda/reduce.cuh"

namespace minfer::cuda {

// Orders experts as they are chosen: by score, then the lower index; what is no number comes last.
// No two experts have the same rank, and 0 is below all.
__device__ inline uint64_t rank_of(float score, int expert) {
  const uint32_t bits = __float_as_uint(score == score ? score : -INFINITY);
  const uint32_t ordered = bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
  return uint64_t{ordered} << 32 | (0xffffffffu - uint32_t(expert));
}

__device__ inline uint64_t warp_max(uint64_t value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const uint64_t other = __shfl_xor_sync(kAllLanes, value, distance);
    value = other > value ? other : value;
  }
  return value;
}

struct Choice {
  int32_t expert;
  float weight;
};

// Chooses the experts of one row, from its logits: lane j of the warp that calls it gets the j-th,
// at most 32. Each round takes the largest rank below that of the round before.
__device__ inline Choice choose_experts(const float* logits, const Router& router) {
  const int lane = int(threadIdx.x) % 32, n = router.n_experts;
  const auto logit = [&](int e) {
    return router.bias == nullptr ? logits[e] : logits[e] + router.bias[e];
  };
  float top = -INFINITY, sum = 0;
  const bool is_softmax = router.score == RouterScore::Softmax;
  if (is_softmax) {
    for (int e = lane; e < n; e += 32) top = fmaxf(top, logit(e));
    top = warp_reduce(top, Max{});
    for (int e = lane; e < n; e += 32) sum += expf(logit(e) - top);
    sum = warp_reduce(sum, Sum{});
  }
  const auto score = [&](int e) {
    return is_softmax ? expf(logit(e) - top) / sum : 1.0f / (1.0f + expf(-logit(e)));
  };
  uint64_t last = ~uint64_t{0};
  float total = 0, own = 0;
  int own_expert = 0;
  for (int j = 0; j < router.n_active; ++j) {
    uint64_t best = 0;
    for (int e = lane; e < n; e += 32) {
      float s = score(e);
      if (router.correction != nullptr) s += router.correction[e];
      const uint64_t rank = rank_of(s, e);
      if (rank < last && rank > best) best = rank;
    }
    last = warp_max(best);
    const int expert = int(0xffffffffu - uint32_t(last));
    const float s = score(expert);
    total += s;
    if (lane == j) {
      own = s;
      own_expert = expert;
    }
  }
  return {own_expert, (router.renormalizes ? own / total : own) * router.scale};
}

}  // namespace minfer::cuda
