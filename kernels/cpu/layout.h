#pragma once

#include <cstdint>

namespace minfer::cpu {

// A matrix [rows, cols] is stored as panels [ceil(rows / 16)][cols][16]: the lanes of a vector are
// 16 rows, so a dot product needs no sum across lanes, and a panel is read from one end to the
// other. Rows past the end are zero. Weights are stored this way (rows: outputs). So are the keys
// and values of each head in a page of the KV cache (keys: rows are positions; values: rows are
// elements of the head, cols are positions).
constexpr int64_t kPanel = 16;

// Linear layers with float weights sum every dot product in one fixed order, so that its bits
// depend neither on the number of tokens nor on the threads. Each block of kKBlock columns is
// summed from zero in column order by fused multiply-adds (by separate multiplications and
// additions in the reference kernels); the block sums are then added in order to the first one.
constexpr int64_t kKBlock = 128;

// Attention processes positions in blocks of this many, which begin at multiples of it. Each block
// is one page of the KV cache.
constexpr int64_t kPositionBlock = 128;
static_assert(kPositionBlock % kPanel == 0 && kPositionBlock <= kKBlock);

// These functions are static, so that the linker cannot use a copy from an object file built with
// AVX flags in the others.
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
