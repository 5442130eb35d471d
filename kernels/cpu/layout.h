#pragma once

#include <cstdint>

namespace minfer::cpu {

// A matrix [rows, cols] is stored as panels [ceil(rows / 16)][cols][16]: the lanes of a vector are
// 16 rows, so a dot product needs no sum across lanes, and a panel is read from one end to the
// other. Rows past the end are zero. Weights are stored so (rows: outputs), and of a page of the
// cache the keys (rows: positions, one matrix for each head) and the values (rows: elements of a
// head, cols: positions).
constexpr int64_t kPanel = 16;

// The order of every sum of products, so that its bits depend neither on the number of tokens nor
// on the threads: blocks of kKBlock columns, each summed from zero in order by fused multiply-adds
// (plain products and sums in the base path); block sums are added in order to the first one.
constexpr int64_t kKBlock = 128;

// Attention takes positions in blocks of this many, at absolute multiples of it: pages.
constexpr int64_t kPositionBlock = 128;
static_assert(kPositionBlock % kPanel == 0 && kPositionBlock <= kKBlock);

// These are static, so that no object file built with AVX flags holds a copy for the linker to
// share.
static constexpr int64_t n_panels(int64_t rows) { return (rows + kPanel - 1) / kPanel; }

static constexpr int64_t n_blocks(int64_t cols) { return (cols + kKBlock - 1) / kKBlock; }

static constexpr int64_t panel_elements(int64_t rows, int64_t cols) {
  return n_panels(rows) * cols * kPanel;
}

// Offset of element [row, col].
static constexpr int64_t panel_offset(int64_t row, int64_t col, int64_t cols) {
  return (row / kPanel * cols + col) * kPanel + row % kPanel;
}

}  // namespace minfer::cpu
