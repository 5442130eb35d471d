#pragma once

#include <string>

namespace minfer {

// Cores that this process may use: its affinity mask, cut by the smallest quota of its control
// groups. `root` stands before every path that is read.
int usable_cores(const std::string& root = "");

}  // namespace minfer
