#pragma once

#include "kernels/cuda/attention/decode.h"
#include "kernels/cuda/attention/decode_merge.cuh"
#include "kernels/cuda/attention/decode_ring.cuh"
#include "kernels/cuda/divisor.h"
#include "kernels/cuda/numbers.cuh"

namespace minfer::cuda::attention {

struct DecodeArgs {
  void* out;                    // [n, n_heads, head_dim]; out, q, k, v of F16 or BF16
  const void *q, *k, *v;        // the same, [n, n_kv_heads, head_dim]
  const void *q_norm, *k_norm;  // [head_dim], as q, or null
  float norm_eps;
  const float2* rope;  // [.., n_pairs]
  Cache cache;         // with the page table of the first sequence
  const int* pos;      // [n], of which that of each sequence's first row is read
  // Results of each sequence, group of heads (gridDim.x in a sequence) and split. sum_dim is
  // head_dim rounded up to whole 16 bytes.
  unsigned* counters;  // [sequences, groups] blocks that have stored their result
  float2* states;      // [sequences, groups, splits.n, kMostHeads] maximum and sum
  float* sums;         // [sequences, groups, splits.n, kMostHeads, sum_dim]
  int sum_dim, n_pairs, n_heads, heads_per_kv, blocks_per_kv;
  Divisor by_heads_per_kv, by_blocks_per_kv;
  int rows_of_sequence;  // kMasked; else it is 1
  int table_pages;       // entries of a page table
  int window;            // positions that a query sees, or kNoWindow; kMasked
  DecodeSplits splits;
  bool is_bf16;
  float scale_log2;
  SoftCap cap_log2;
  const float* sinks;  // [n_heads], or null
};

// The range of positions that a block has.
struct KvRange {
  int n_splits, begin, end;
  // Splits positions first ... kv_len - 1; `first` is a multiple of `step`.
  __device__ KvRange(const DecodeSplits& s, int first, int kv_len, int step) {
    const int n = kv_len - first;
    const bool is_alone = s.n == 1 || n <= s.most_alone;
    const int even = is_alone ? n : max(s.least, (n + s.n - 1) / s.n);
    const int chunk = (even + step - 1) / step * step;  // whole tiles
    n_splits = (n + chunk - 1) / chunk;
    begin = min(first + int(blockIdx.y) * chunk, kv_len);
    end = min(begin + chunk, kv_len);
  }
};

// The most rows of one sequence in a step.
constexpr int kMostNewRows = int{kMaxGemvTokens};

// For each row of a sequence, out[h] = softmax_j(scale q'[h] . k[j]) v[j] over j <= its position of
// the head's keys and values; those of the sequence's own rows in this step are k' and v, which are
// also written to the cache. q', k': q and k normed, if there are norms, and rotated by the angles
// of their position. kMasked: over the last `window` of those positions, and the sequence may have
// several rows, at consecutive positions. A sink of head h, if there is one, joins the softmax when
// all positions are merged.
//
//   cache     rows of this step are written and not read: a block makes those of its range itself,
//             in shared memory, rounded as the cache holds them. So a row sees those in front of it
//             without another kernel that appends them first
//   launch    grid (key/value heads x blocks_per_kv, splits, sequences): a block has up to 8
//             columns of one key/value head, that is (row, query head) pairs, row by row, and one
//             range of positions (KvRange). Its warps take tiles of 16 or 32 positions in turn
//             (decode_tile.cuh), each with its own softmax and its own ring (decode_ring.cuh).
//             Ranges follow from pos; blocks without one exit at once. The last block of a group to
//             arrive merges the splits and zeroes the counter. Two blocks, or one and a block of a
//             GEMV, fit on an SM. Dynamic smem: ring_bytes
//   order     pos and the cache before it are read ahead of wait_for_predecessor (launchers.h): the
//             ring of each warp is filled before it
//   requires  head_dim <= kD; rows_of_sequence <= kMostNewRows. kPlain: head_dim = kD, all of a
//             head is rotated, and q and k have no norms. Such kernels are two thirds as long, and
//             code costs time even where it does not run
//   maths     f32 rotation and softmax (ex2.approx); q rounded to F16; f16 x f16 summed in f32;
//             weights are rounded to F16 where they multiply v, but not in their sum. U8: codes are
//             exact in F16; k's scale multiplies the score, v's the weight, in f32. Everything is
//             merged in a fixed order
//   moves     2 n_kv_heads (pos + 1) head_dim elements of the cache of each sequence, for each of
//             the blocks_per_kv blocks; all but the first of them may read from L2
//   source    Dao et al. 2023, "Flash-Decoding" (splits); Milakov and Gimelshein 2018 (merge)
template <int kD, bool kU8, bool kAligned, bool kMasked, bool kPlain>
__global__ void __launch_bounds__(32 * decode_warps(kD), 2) decode_kernel(const DecodeArgs args) {
  DecodeArgs a = args;
  if constexpr (kPlain) {
    a.q_norm = a.k_norm = nullptr;
    a.cache.head_dim = a.sum_dim = kD;
    a.n_pairs = kD / 2;
  }
  using Tile = DecodeTile<kD, kU8, kMasked>;
  using Ring = CacheRing<kD, kU8, kAligned, kMasked>;
  constexpr int kWarps = Ring::kWarps, kThreads = 32 * kWarps;
  constexpr int kNewRows = kMasked ? kMostNewRows : 1;
  constexpr int kRows = (kMostHeads + 2 * kNewRows + kWarps - 1) / kWarps;  // of q, k, v of a warp
  struct Shared {
    alignas(16) __half q[kMostHeads][kD + 8];
    NewRows<kD, kU8, kNewRows> fresh;
    SoftmaxState state[kWarps][kMostHeads];
    typename Ring::Shared ring[kWarps];
    bool is_last;
  };
  Shared& shared = ptx::static_shared<Shared>();
  auto& s_q = shared.q;
  auto& s_new = shared.fresh;
  auto& s_state = shared.state;
  uint8_t* const s_slots = ptx::dynamic_shared<128>();  // then float [kWarps, kMostHeads, kD]

  ptx::let_successor_begin();
  const int sequence = int(blockIdx.z), first_group = sequence * int(gridDim.x);
  const int n_new = kMasked ? a.rows_of_sequence : 1;
  const int pos = __ldcg(a.pos + sequence * n_new), kv_len = pos + n_new;
  const int seen_from = kMasked ? max(0, pos + 1 - a.window) : 0;
  const KvRange range(a.splits, seen_from / Tile::kRows * Tile::kRows, kv_len, Tile::kRows);
  if (int(blockIdx.y) >= range.n_splits) return;
  const int lane = threadIdx.x % 32, warp = ptx::warp_index();
  Cache cache = a.cache;
  cache.pages += int64_t{sequence} * a.table_pages;
  const int head_dim = cache.head_dim;
  const int kv_head = a.by_blocks_per_kv.quotient(int(blockIdx.x));
  const int part = int(blockIdx.x) - kv_head * a.blocks_per_kv;
  const int first_column = part * kMostHeads;
  const int columns = min(kMostHeads, n_new * a.heads_per_kv - first_column);
  // Which of the sequence's rows a column has, and its query head.
  const auto token_of = [&](int column) {
    return kMasked ? a.by_heads_per_kv.quotient(first_column + column) : 0;
  };
  const auto head_of = [&](int column) {
    return (kv_head - token_of(column)) * a.heads_per_kv + first_column + column;
  };
  // Its row of q and out.
  const auto row_of = [&](int column) {
    return (sequence * n_new + token_of(column)) * a.n_heads + head_of(column);
  };
  // The new rows in this block's range.
  const int first_new = max(range.begin - pos, 0);
  const int n_fresh = max(range.end - pos - first_new, 0);

  Ring ring(s_slots, shared.ring[warp], cache, kv_head,
            {.begin = range.begin,
             .readable = min(range.end, pos),
             .end = range.end,
             .warp = warp,
             .turn = int(blockIdx.y * gridDim.x + blockIdx.x)});
  // Rows of this warp: every kWarps-th of first the queries, then the new keys, then their values.
  const int n_rows = columns + 2 * n_fresh;
  const auto index_of = [&](int x) { return warp + x * kWarps; };
  const auto is_key = [&](int r) { return r >= columns && r < columns + n_fresh; };
  // Which of the sequence's rows a key or value is.
  const auto new_row = [&](int r) {
    return kMasked ? first_new + r - columns - (is_key(r) ? 0 : n_fresh) : 0;
  };
  RawRow<kD> norms[2];  // of q and k
  if (a.q_norm != nullptr) norms[0].load(a.q_norm, 0, head_dim, a.n_pairs);
  if (a.k_norm != nullptr) norms[1].load(a.k_norm, 0, head_dim, a.n_pairs);
  Angles<kD> angles[kRows];
#pragma unroll
  for (int x = 0; x < kRows; ++x) {
    const int r = index_of(x);
    if (r >= columns + n_fresh) continue;
    const int at = pos + (r < columns ? token_of(r) : new_row(r));
    angles[x].load(a.rope + int64_t{at} * a.n_pairs, a.n_pairs);
  }
  for (int i = threadIdx.x; i < kMostHeads * (kD + 8); i += kThreads) (&s_q[0][0])[i] = __half(0);
  s_new.clear();
  __syncthreads();
  ptx::wait_for_predecessor();

  // The step's own rows of q, k and v: each is read by one warp, and all reads are in flight at
  // once.
  RawRow<kD> raw[kRows];
#pragma unroll
  for (int x = 0; x < kRows; ++x) {
    const int r = index_of(x);
    if (r >= n_rows) continue;
    if (r < columns) {
      raw[x].load(a.q, row_of(r), head_dim, a.n_pairs);
    } else {
      const int row = (sequence * n_new + new_row(r)) * cache.n_kv_heads + kv_head;
      raw[x].load(is_key(r) ? a.k : a.v, row, head_dim, is_key(r) ? a.n_pairs : 0);
    }
  }
#pragma unroll
  for (int x = 0; x < kRows; ++x) {
    const int r = index_of(x);
    if (r >= n_rows) continue;
    if (a.q_norm != nullptr && r < columns) {
      raw[x].normalize(norms[0], a.norm_eps, head_dim, a.is_bf16);
    } else if (a.k_norm != nullptr && is_key(r)) {
      raw[x].normalize(norms[1], a.norm_eps, head_dim, a.is_bf16);
    }
    const int n_pairs = r < columns + n_fresh ? a.n_pairs : 0;
    const auto for_each = [&](const auto& emit) {
      raw[x].rotate(angles[x], head_dim, n_pairs, a.is_bf16, emit);
    };
    if (r < columns) {
      for_each([&](int i, float value) { s_q[r][i] = __float2half_rn(value); });
    } else {
      const int i = new_row(r);
      put_row(for_each, is_key(r), s_new, i, cache, kv_head, pos + i, part == 0);
    }
  }
  __syncthreads();

  Tile tile(s_q[lane / 4], ring.row_bytes(), a.scale_log2, a.cap_log2);
  if constexpr (kMasked) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int column = lane % 4 * 2 + i;
      const int last = column < columns ? pos + token_of(column) : pos;
      tile.see(i, last - a.window + 1, last);
    }
  }
  for (int i = 0; i < ring.n_tiles(); ++i) {
    const TileRows keys = ring.take(s_new.keys());
    float scales[Tile::kUnits];
    ring.load_scales(scales);
    tile.take_keys(keys, scales, s_new.scale[0]);
    ring.refill();
    tile.take_values(ring.take(s_new.values()));
    ring.refill();
  }
  // Reuses the memory of the warp's slots: no copy into them is left.
  float* const s_sums = reinterpret_cast<float*>(s_slots);
  constexpr int kWarpFloats = Ring::kWarpBytes / int{sizeof(float)};
  static_assert(kWarpFloats >= kMostHeads * kD);
  tile.store(s_state[warp], s_sums + warp * kWarpFloats, columns);
  __syncthreads();

  const int group = first_group + int(blockIdx.x);
  const BlockParts parts{.counter = a.counters + group,
                         .states = a.states,
                         .sums = a.sums,
                         .first = int64_t{group} * a.splits.n * kMostHeads,
                         .sum_dim = a.sum_dim,
                         .n_splits = range.n_splits,
                         .split = int(blockIdx.y)};
  merge_block<kD, kWarps>(parts, s_state, s_sums, kWarpFloats, columns, head_dim, shared.is_last,
                          [&](Merged whole, int column, int d) {
                            whole.add_sink(sink_log2(a.sinks, head_of(column)));
                            whole.store(a.out, int64_t{row_of(column)} * head_dim + d, head_dim - d,
                                        a.is_bf16);
                          });
}

}  // namespace minfer::cuda::attention
