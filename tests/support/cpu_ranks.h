#pragma once

#include <memory>
#include <vector>

#include "kernels/comm/rank_group.h"

namespace minfer::test {

// Ranks on the CPU, with a thread each.
inline std::unique_ptr<Backend> cpu_ranks(int n_ranks) {
  std::vector<std::unique_ptr<Backend>> backends;
  for (int rank = 0; rank < n_ranks; ++rank) {
    backends.push_back(make_cpu_backend({.n_threads = 1, .isa = {}}));
  }
  return join_ranks(std::move(backends));
}

}  // namespace minfer::test
