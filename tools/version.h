#pragma once

#include <string>

namespace minfer {

// Version, commit, compiler, what this machine's CPU has and which path is chosen for it.
std::string version_text();

}  // namespace minfer
