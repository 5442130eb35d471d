#pragma once

#include <cstdint>

namespace minfer::cuda {

// What changes from step to step. Flagged words (step_exchange.cuh) that may carry an epoch of this
// step are cleared before it.
struct StepInput {
  int32_t token, pos;
  uint32_t epoch;  // of the first layer, at least 1; that of the last is below 65536
};

}  // namespace minfer::cuda
