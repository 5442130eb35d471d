#pragma once

#include <cstdint>

namespace minfer::cuda {

constexpr int kMostStepTokens = 2;

// What changes from step to step. Flagged words (step_exchange.cuh) that may carry an epoch of this
// step are cleared before it.
struct StepInput {
  int32_t tokens[kMostStepTokens];  // at positions pos and, in a step of two tokens, pos + 1
  int32_t pos;
  uint32_t epoch;  // of the first layer, at least 1; that of the last is below 65536
};

}  // namespace minfer::cuda
