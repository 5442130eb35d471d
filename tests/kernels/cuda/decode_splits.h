#pragma once

#include <vector>

#include "kernels/cuda/attention/decode.h"
#include "tests/kernels/cuda/attention_cases.h"

namespace minfer::test {

// The launcher's choice of splits, and others: one block at any length; a few blocks with many
// positions each; more blocks than slices; slices of a single step; more slices than one batch of
// the merge.
inline std::vector<cuda::attention::DecodeSplits> splits_of(const Heads& h, int64_t capacity) {
  return {cuda::attention::decode_splits(1, h.n_heads, h.n_kv_heads, capacity),
          {1, 256, 128},
          {5, 256, 128},
          {40, 16, 16},
          {3, 0, 64},
          {64, 128, 1}};
}

}  // namespace minfer::test
