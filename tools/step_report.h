#pragma once

#include <cstdint>
#include <string>

#include "kernels/step_profile.h"

namespace minfer {

// What `minfer bench step` has measured.
struct StepMeasurement {
  std::string model, backend, kv_type;
  int64_t n_depth = 0, n_gen = 0;          // steps at positions n_depth ... n_depth + n_gen - 1
  double step_s = 0, profiled_step_s = 0;  // of a step, without and with the timers
  StepProfile profile;
};

// {"machine", "step_s", ..., "phases"}, and a table.
std::string step_json(const StepMeasurement& measured);
std::string step_text(const StepMeasurement& measured);

}  // namespace minfer
