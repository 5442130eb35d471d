#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "kernels/bench.h"

namespace minfer {

// What the machine can do: its processors, and the card where one is used.
struct MachineLimits {
  CpuLimits cpu;
  std::optional<CudaLimits> cuda;
};

nlohmann::ordered_json machine_json();  // the host by name
nlohmann::ordered_json limits_object(const MachineLimits& limits);

// {"machine", "limits"}, and the same as text.
std::string limits_json(const MachineLimits& limits);
std::string limits_text(const MachineLimits& limits);

}  // namespace minfer
