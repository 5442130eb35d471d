#pragma once

#include "kernels/cuda/launchers.h"
#include "kernels/cuda/numbers.cuh"

// The cache of a layer, with the pages of one sequence.
namespace minfer::cuda::attention {

constexpr int kPage = int{kPagePositions};

struct Cache {
  void *keys, *values;               // rows of head_dim, F16 or U8 codes
  float *key_scales, *value_scales;  // one for each row; U8 only
  const int32_t* pages;              // null: page i of the sequence is page i
  int n_kv_heads, head_dim;

  __device__ int page_of(int pos) const {
    return pages == nullptr ? pos / kPage : __ldg(pages + pos / kPage);
  }
  // The index of the row that holds a position of a head. Rows of one page and head are adjacent.
  __device__ int64_t row(int kv_head, int pos) const {
    return (int64_t{page_of(pos)} * n_kv_heads + kv_head) * kPage + pos % kPage;
  }
};

inline Cache cache_of(const KvLayer& layer, const int32_t* pages) {
  return {.keys = layer.keys.view().data,
          .values = layer.values.view().data,
          .key_scales = data_of<float>(layer.key_scales),
          .value_scales = data_of<float>(layer.value_scales),
          .pages = pages,
          .n_kv_heads = narrow<int>(layer.n_kv_heads),
          .head_dim = narrow<int>(layer.head_dim)};
}

// Throws Internal if the rows reach past the table of pages.
inline void check_place(const char* operation, const CachePlace& place, int64_t n_tokens) {
  MINFER_CHECK(
      place.pages != nullptr && place.pos >= 0 && place.pos + n_tokens <= place.max_positions(),
      operation, ": positions ", place.pos, " to ", place.pos + n_tokens, " of ", place.n_pages,
      " pages");
}

}  // namespace minfer::cuda::attention
