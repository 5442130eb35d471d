#pragma once

#include "models/quantize/group_search.h"

namespace minfer {

// A group whose columns are quantized one after the other with GPTQ's error feedback (gptq.h).
struct FeedbackGroup {
  const float* weights;  // [size], in the order in which the columns are quantized
  int64_t size;
  const float* upper;  // the diagonal element of U [n, n] at the group's first column
  int64_t n;
};

// Returns the scale with the least loss, sum ((w - stored) / U[j][j])^2, where w is a weight after
// the feedback of the group's earlier columns. The loss is what remains of (w - q) H (w - q)^T when
// the columns after the group compensate. The search is near the scale of least error and, with
// `either_sign`, near its negative. A group of more than 128 columns keeps the one of least error.
GroupScale scale_of_least_loss(const FeedbackGroup& group, const GroupScale& least_error,
                               bool either_sign);

}  // namespace minfer
