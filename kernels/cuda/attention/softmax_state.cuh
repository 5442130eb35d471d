#pragma once

#include "kernels/cuda/ptx.cuh"

// The one copy of the online softmax's algebra. Scores are in units of log2: the caller multiplies
// them by scale * log2(e), so that a weight is a bare 2^x.
namespace minfer::cuda::attention {

// Of the scores seen so far: their maximum, and the sum of their weights 2^(score - max). The sum
// may be one lane's share of it: shares add up where the maximum is common.
//
//   source  Milakov and Gimelshein 2018, arXiv:1805.02867
struct SoftmaxState {
  static constexpr float kSlack = 8;  // see raise_late

  float max = -INFINITY;
  float sum = 0;

  // Takes in the maximum of more scores; either it or the one before must be finite. Returns the
  // factor for what was weighted before: exactly 1 where the maximum stays.
  __device__ float raise(float top) {
    const float next = fmaxf(max, top);
    const float factor = ptx::exp2_fast(max - next);
    max = next;
    sum *= factor;
    return factor;
  }
  // The same, but the maximum stays where scores pass it by no more than kSlack, as they mostly do
  // behind a row's first ones: weights are up to 2^kSlack then, which F16 holds as well as 1.
  __device__ float raise_late(float top) { return raise(top > max + kSlack ? top : max); }
  // What a part of the same row counts for in this state, whose maximum is none of the parts' less.
  // Nothing where it has seen no score, even if no part has.
  __device__ float share_of(float part_max) const {
    return part_max == -INFINITY ? 0.0f : ptx::exp2_fast(part_max - max);
  }
};

}  // namespace minfer::cuda::attention
