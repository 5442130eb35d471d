#pragma once

#include "kernels/cuda/ptx.cuh"

// The algebra of the online softmax, for all attention kernels. Scores are in units of log2: the
// caller multiplies them by scale * log2(e), so that a weight is simply 2^x.
namespace minfer::cuda::attention {

// A soft cap of scores in some unit, in which it is c; 0: none. All threads have the same.
struct SoftCap {
  float c = 0, factor = 0;  // 2 log2(e) / c

  // softcap: in the unit of scaled scores; `unit`: the factor from there to the caller's.
  __host__ static SoftCap of(float softcap, float unit) {
    return softcap > 0 ? SoftCap{softcap * unit, 2.88539008177792681f / (softcap * unit)}
                       : SoftCap{};
  }
  // c tanh(x / c) = c - 2 c / (1 + exp(2 x / c)), with an error of at most 2^-21 c. Infinities have
  // their limits, NaN stays.
  __device__ float operator()(float x) const {
    if (c == 0) return x;
    return c * fmaf(-2.0f, ptx::reciprocal_fast(1.0f + ptx::exp2_fast(x * factor)), 1.0f);
  }
};

// The sink of a head in units of log2; -inf: there is none.
//   sinks  [n_heads], or null
__device__ inline float sink_log2(const float* sinks, int head) {
  return sinks == nullptr ? -INFINITY : __ldg(sinks + head) * 1.44269504088896341f;
}

// The maximum of the scores seen so far, and the sum of their weights 2^(score - max). Lanes with
// the same maximum may each hold the sum of some of the scores only; these sums then add up.
//
//   source  Milakov and Gimelshein 2018, arXiv:1805.02867
struct SoftmaxState {
  static constexpr float kSlack = 8;  // see raise_late

  float max = -INFINITY;
  float sum = 0;

  // Raises the maximum to that of more scores, `top`; one of the two must be finite. Returns the
  // factor for what was weighted before: exactly 1 if the maximum stays.
  __device__ float raise(float top) {
    const float next = fmaxf(max, top);
    const float factor = ptx::exp2_fast(max - next);
    max = next;
    sum *= factor;
    return factor;
  }
  // The same, but the maximum stays if scores exceed it by no more than kSlack, as most do after
  // the first ones of a row: weights are then up to 2^kSlack, which F16 holds as well as 1.
  __device__ float raise_late(float top) { return raise(top > max + kSlack ? top : max); }
  // A sink joins: one more score, in the same unit, whose value is 0; -inf: there is none. Returns
  // the factor for what was weighted before.
  __device__ float take_sink(float sink) {
    if (sink == -INFINITY) return 1.0f;
    const float factor = raise(sink);
    sum += ptx::exp2_fast(sink - max);
    return factor;
  }
  // The weight in this state of another range of the same row, whose maximum is not above this one:
  // 0 if that range has no score, even if this state has none either.
  __device__ float weight_of(float part_max) const {
    return part_max == -INFINITY ? 0.0f : ptx::exp2_fast(part_max - max);
  }
};

}  // namespace minfer::cuda::attention
