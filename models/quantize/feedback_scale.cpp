#include "models/quantize/feedback_scale.h"

#include <array>
#include <cmath>
#include <vector>

#include "models/quantize/rounding.h"

namespace minfer {
namespace {

constexpr size_t kTrials = 8;  // scales that are tried at a time
using Trials = std::array<float, kTrials>;

constexpr int64_t kLargestGroup = 128;  // the cost of a weight grows with its group

// The loss of each of the scales.
Trials losses(const FeedbackGroup& group, const Trials& scales, float low, float high) {
  std::vector<Trials> left(static_cast<size_t>(group.size));
  for (size_t j = 0; j < left.size(); ++j) left[j].fill(group.weights[j]);
  Trials inverse, loss{};
  for (size_t l = 0; l < kTrials; ++l) inverse[l] = 1 / scales[l];
  const float* u = group.upper;
  for (size_t j = 0; j < left.size(); ++j, u += group.n + 1) {
    Trials error;
    for (size_t l = 0; l < kTrials; ++l) {
      const float w = left[j][l], code = rounded_within(w * inverse[l], low, high);
      error[l] = (w - scales[l] * code) / u[0];
      loss[l] += error[l] * error[l];
    }
    for (size_t k = j + 1; k < left.size(); ++k) {
      for (size_t l = 0; l < kTrials; ++l) left[k][l] -= error[l] * u[k - j];
    }
  }
  return loss;
}

}  // namespace

GroupScale scale_of_least_loss(const FeedbackGroup& group, const GroupScale& least_error,
                               bool either_sign) {
  constexpr float kCoarseStep = 0.03f, kFineStep = 0.004f;
  if (least_error.scale == 0 || group.size > kLargestGroup) return least_error;
  const float low = float(least_error.low - least_error.zero),
              high = float(least_error.high - least_error.zero);
  GroupScale best = least_error;
  float best_loss = INFINITY;
  const auto try_around = [&](float middle, float step, int first) {
    Trials scales;
    for (size_t l = 0; l < kTrials; ++l) {
      scales[l] = stored_scale(middle * (1 + step * float(first + int(l))));
    }
    const Trials loss = losses(group, scales, low, high);
    for (size_t l = 0; l < kTrials; ++l) {
      if (loss[l] < best_loss) {
        best_loss = loss[l];
        best.scale = scales[l];
      }
    }
  };
  constexpr int kHalf = kTrials / 2;
  for (const float sign : {1.0f, -1.0f}) {
    if (sign < 0 && !either_sign) continue;
    for (const int first : {-2 * kHalf, 0}) {
      try_around(sign * least_error.scale, kCoarseStep, first);
    }
  }
  try_around(best.scale, kFineStep, -kHalf);
  return best;
}

}  // namespace minfer
