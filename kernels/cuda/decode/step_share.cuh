#pragma once

#include <cstdint>

#include "kernels/cuda/decode/step_params.h"

// Which part of attention a block has, and in which stages of the ring its rows of the cache come.
namespace minfer::cuda {

// What a block has of the attention of a layer.
struct StepAttentionShare {
  bool takes_part;
  int kv_head, first_head, group, split, splits;  // splits: that have positions
  int begin, end, pos;                            // positions; `end` may include pos
  bool has_new, appends;
};

__device__ inline StepAttentionShare attention_share(const StepAttention& a, int pos) {
  StepAttentionShare t{};
  t.pos = pos;
  t.group = int(blockIdx.x) / a.n_splits;
  t.split = int(blockIdx.x) % a.n_splits;
  const int kv_len = pos + 1;
  t.splits = kv_len <= a.most_alone ? 1 : a.n_splits;
  t.takes_part = t.group < a.n_groups && t.split < t.splits;
  const int chunk = (kv_len + t.splits - 1) / t.splits;
  t.begin = min(t.split * chunk, kv_len);
  t.end = min(t.begin + chunk, kv_len);
  t.has_new = t.begin < t.end && t.end == kv_len;
  t.kv_head = t.group / a.blocks_per_kv;
  t.first_head = t.group * a.heads_per_block;
  t.appends = t.has_new && t.group % a.blocks_per_kv == 0;
  return t;
}

// The rows that the cache holds already: stages of keys and of values take turns, an even number of
// each, the last of which may be empty.
struct CacheStages {
  int64_t first_row;  // of the cache of a layer: [n_kv_heads, capacity]
  int n_rows, n_stages, stage_rows, row_bytes;

  __device__ int rows_of(int stage) const {
    return max(0, min(stage_rows, n_rows - stage * stage_rows));
  }
  // Of n scales from `row` on and those in front of them that share their 16 bytes.
  static __host__ __device__ int scale_bytes(int64_t row, int n) {
    return n == 0 ? 0 : (int(row & 3) + n + 3) / 4 * 16;
  }
};
__device__ inline CacheStages cache_stages(const StepAttention& a, const StepAttentionShare& t) {
  CacheStages s{};
  s.first_row = int64_t{t.kv_head} * a.capacity + t.begin;
  s.n_rows = t.takes_part ? max(0, min(t.end, t.pos) - t.begin) : 0;
  s.stage_rows = a.stage_rows;
  s.row_bytes = a.row_bytes();
  s.n_stages = (s.n_rows + 2 * s.stage_rows - 1) / (2 * s.stage_rows) * 2;
  return s;
}

}  // namespace minfer::cuda
