#pragma once

#include "models/quantize/group_search.h"

namespace minfer {

// A group whose columns are quantized one after the other with feedback (gptq.h).
struct FeedbackGroup {
  const float* weights;  // [size], in the order of the columns' turns
  int64_t size;
  const float* upper;  // row and column of the group's first column in U [n, n]
  int64_t n;
};

// The scale of least sum ((w - stored) / U[j][j])^2, where w is what the feedback within the group
// has made of a weight when its turn comes: what is left of (w - q) H (w - q)^T once the columns
// behind the group make up for it. Looked for near the scale of least error, and near its negative
// where `either_sign`; a group of more than 128 columns keeps that of least error.
GroupScale scale_of_least_loss(const FeedbackGroup& group, const GroupScale& least_error,
                               bool either_sign);

}  // namespace minfer
