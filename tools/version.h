#pragma once

#include <string>

namespace minfer {

std::string version();  // "0.1.0 (abc1234)"

// Version, commit, compiler, what this machine's CPU has and which path is chosen for it.
std::string version_text();

}  // namespace minfer
