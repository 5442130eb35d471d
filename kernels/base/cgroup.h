#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace minfer {

// The directory of a control group, of version 1 or 2 of the interface.
struct Cgroup {
  std::string dir;
  bool version2;
};

// The control groups whose limits for `controller` ("cpu", "memory") hold for this process: its own
// and every one above it, as far as they are mounted. `root` stands before every path that is read.
std::vector<Cgroup> cgroups_of(std::string_view controller, const std::string& root = "");

}  // namespace minfer
