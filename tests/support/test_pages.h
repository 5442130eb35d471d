#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backend.h"

namespace minfer::test {

// Pages of one sequence in a pool that has more. They are in reverse order, so that code which
// ignores the table fails as soon as there are two pages.
struct TestPages {
  explicit TestPages(int64_t n_positions) {
    for (int64_t i = pages_for(n_positions); i > 0; --i) pages.push_back(int32_t(i));
  }

  int64_t n_in_pool() const { return std::ssize(pages) + 2; }
  SequenceRows rows(int64_t n, int64_t pos) const { return {n, pos, pages}; }
  // The row of a position in memory [n_in_pool, n_heads, kPagePositions].
  int64_t row(int64_t n_heads, int64_t head, int64_t pos) const {
    const int64_t page = pages[size_t(pos / kPagePositions)];
    return (page * n_heads + head) * kPagePositions + pos % kPagePositions;
  }

  std::vector<int32_t> pages;
};

}  // namespace minfer::test
