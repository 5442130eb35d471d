#pragma once

#include "kernels/cuda/decode/persistent/step_exchange.cuh"
#include "kernels/cuda/gemv/choose.cuh"

// Mixtures of experts: kernels/moe.h has the formulas. When a block has its input of gate and up it
// computes its logits of the router, and publishes them (publish_logits in step_input.cuh). Every
// block gathers all logits and chooses for itself; only then do its producers know what to read.
// Rows of gate and up are those of the chosen experts, one after the other. They publish their
// elements of `hidden` times the weight of their expert, so that down is one linear layer with the
// columns of all of them.
namespace minfer::cuda {

// Chooses the experts of a layer, with a thread for each expert. The producers go on as soon as the
// matrices of all chosen ones are in `experts`; the weights come later, before the next barrier of
// the consumers.
template <typename I>
__device__ inline void choose_in_block(const StepParams& p, const StepLayer& layer,
                                       StepExperts<I>& experts, uint32_t epoch) {
  const Router& router = p.router.choice;
  const int own = thread_index(), n = router.n_experts;
  StepMatrix matrices[3];
  float score = 0;
  uint32_t key = 0;  // below those of all experts
  const bool has_expert = own < n;
  if (has_expert) {
#pragma unroll
    for (int part = 0; part < 3; ++part) {
      const ExpertPlace& from = layer.experts[part * n + own];
      matrices[part] = {static_cast<const uint8_t*>(from.weights),
                        static_cast<const uint8_t*>(from.scales)};
    }
  }
  const bool has_bias = has_expert && layer.router_bias != nullptr;
  const bool has_correction = has_expert && layer.router_correction != nullptr;
  const float bias = has_bias ? __ldg(layer.router_bias + own) : 0;
  const float correction = has_correction ? __ldg(layer.router_correction + own) : 0;
  StepWord word[1] = {StepWord::of(~epoch)};
  await_each(word, {p.words.router_logits + own}, has_expert, epoch);
  if (has_expert) {
    score = word[0].at(0) + bias;
    // Softmax does not change the order; with it there is no correction.
    if (router.score == RouterScore::Sigmoid) score = ptx::reciprocal_fast(1 + expf(-score));
    key = rank_of(score + correction);
  }
  experts.keys[own] = key;
  experts.scores[own] = score;
  consumers_sync();
  // How many come before it: those with larger keys, and of equal ones those before it.
  int place = 0;
#pragma unroll 2
  for (int e = 0; e < n; e += 4) {
    const uint4 keys = *reinterpret_cast<const uint4*>(experts.keys + e);
    place += int(keys.x + uint32_t(e < own) > key) + int(keys.y + uint32_t(e + 1 < own) > key);
    place += int(keys.z + uint32_t(e + 2 < own) > key) + int(keys.w + uint32_t(e + 3 < own) > key);
  }
  const bool is_chosen = has_expert && place < router.n_active;
  if (is_chosen) {
    experts.chosen[place] = own;
#pragma unroll
    for (int part = 0; part < 3; ++part) experts.matrices[part][place] = matrices[part];
  }
  ptx::mbarrier_arrive_if(is_chosen, ptx::shared_address(&experts.arrivals));
  consumers_sync();
  if (warp_index() != 0) return;
  const auto chosen_score = [&](int j) { return experts.scores[experts.chosen[j]]; };
  const bool is_softmax = router.score == RouterScore::Softmax;
  const float top = is_softmax ? chosen_score(0) : 0;
  float weight = own < router.n_active ? chosen_score(own) : 0;
  if (is_softmax && own < router.n_active) weight = expf(weight - top);
  float sum = weight;
  if (is_softmax && !router.renormalizes) {
    sum = 0;
    for (int e = 0; e < n; e += 32) {
      if (e + own < n) sum += expf(experts.scores[e + own] - top);
    }
  }
  sum = warp_reduce(sum, Sum{});
  if (is_softmax || router.renormalizes) weight /= sum;
  if (own < router.n_active) experts.weights[own] = weight * router.scale;
}

// The weight of the expert that a gate/up tile pair belongs to.
template <typename I>
__device__ inline float expert_weight(const StepParams& p, const StepGemv& gemv,
                                      const StepExperts<I>& experts, int pair) {
  if (!p.router.exists()) return 1;
  return experts.weights[pair / gemv.expert_pairs];
}

}  // namespace minfer::cuda
