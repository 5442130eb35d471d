#pragma once

#include <memory>
#include <vector>

#include "kernels/comm/rank_group.h"

namespace minfer::test {

// Ranks on this machine's cards. If there are more ranks than cards, some share a card.
inline std::unique_ptr<Backend> card_ranks(int n_ranks, DType compute_dtype = DType::F16) {
  std::vector<std::unique_ptr<Backend>> backends;
  for (int rank = 0; rank < n_ranks; ++rank) {
    backends.push_back(
        make_cuda_backend({.device = rank % n_cuda_devices(), .compute_dtype = compute_dtype}));
  }
  return join_ranks(std::move(backends));
}

}  // namespace minfer::test
