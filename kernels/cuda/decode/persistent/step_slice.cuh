#pragma once

#include <cstdint>

#include "kernels/cuda/decode/persistent/step_params.h"

// Which heads and positions of attention a block has, and which stages of the ring hold its rows of
// the cache.
namespace minfer::cuda {

// A block's slice of attention, the same in every layer of one kind.
struct StepAttentionSlice {
  bool takes_part;
  int kv_head, first_head, group, split, splits;  // splits: blocks that divide the positions
  int begin, end, pos;                            // positions; `end` may include pos
  bool has_new, appends;
};

// `window`: positions that the query sees; 0: all.
__device__ inline StepAttentionSlice attention_slice(const StepAttention& a, int pos, int window) {
  StepAttentionSlice t{};
  t.pos = pos;
  t.group = int(blockIdx.x) / a.n_splits;
  t.split = int(blockIdx.x) % a.n_splits;
  const int kv_len = pos + 1, first = window == 0 ? 0 : max(0, kv_len - window);
  const int n_seen = kv_len - first;
  t.splits = n_seen <= a.most_alone ? 1 : a.n_splits;
  t.takes_part = t.group < a.n_groups && t.split < t.splits;
  const int chunk = (n_seen + t.splits - 1) / t.splits;
  t.begin = min(first + t.split * chunk, kv_len);
  t.end = min(t.begin + chunk, kv_len);
  t.has_new = t.begin < t.end && t.end == kv_len;
  t.kv_head = t.group / a.blocks_per_kv;
  t.first_head = t.group * a.heads_per_block;
  t.appends = t.has_new && t.group % a.blocks_per_kv == 0;
  return t;
}

// The block's rows that are already in the cache, as they come through the ring. Stages of keys and
// of values alternate; there is an even number of each, and the last ones may be empty.
struct CacheStages {
  int begin;  // position
  int n_rows, n_stages, stage_rows, row_bytes;

  __device__ int rows_of(int stage) const {
    return max(0, min(stage_rows, n_rows - stage * stage_rows));
  }
  // Scales are copied 16 bytes at a time: the scales of this many earlier positions precede those
  // of the stage.
  __device__ int skipped(int stage) const { return (begin + stage * stage_rows) & 3; }
  // Bytes copied for n scales from position `pos` on, including those that precede them.
  static __host__ __device__ int scale_bytes(int pos, int n) {
    return n == 0 ? 0 : ((pos & 3) + n + 3) / 4 * 16;
  }
};
// The row of a layer's cache, [n_pages, n_kv_heads, kPagePositions], that holds a position of a
// head.
__device__ inline int64_t cache_row(const StepParams& p, int kv_head, int pos) {
  constexpr int kPage = int{kPagePositions};
  const int64_t page = __ldg(p.pages + pos / kPage);
  return (page * p.attention.n_kv_heads + kv_head) * kPage + pos % kPage;
}
__device__ inline CacheStages cache_stages(const StepAttention& a, const StepAttentionSlice& t) {
  CacheStages s{};
  s.begin = t.begin;
  s.n_rows = t.takes_part ? max(0, min(t.end, t.pos) - t.begin) : 0;
  s.stage_rows = a.stage_rows;
  s.row_bytes = a.row_bytes();
  s.n_stages = (s.n_rows + 2 * s.stage_rows - 1) / (2 * s.stage_rows) * 2;
  return s;
}

}  // namespace minfer::cuda
