#pragma once

#include <string>
#include <vector>

#include "tools/machine_report.h"

namespace minfer {

// Kernels beside the limits of the same run: {"machine", "limits", "results"}, and a table.
std::string kernels_json(const MachineLimits& limits, const std::vector<KernelTiming>& timings);
std::string kernels_text(const MachineLimits& limits, const std::vector<KernelTiming>& timings);

}  // namespace minfer
