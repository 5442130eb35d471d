#pragma once

#include "kernels/cuda/attention/decode.h"
#include "kernels/cuda/attention/decode_merge.cuh"
#include "kernels/cuda/attention/decode_ring.cuh"
#include "kernels/cuda/numbers.cuh"

namespace minfer::cuda::attention {

struct DecodeArgs {
  void* out;                    // [n, n_heads, head_dim]; out, q, k, v of F16 or BF16
  const void *q, *k, *v;        // the same, [n, n_kv_heads, head_dim]
  const void *q_norm, *k_norm;  // [head_dim], as q, or null
  float norm_eps;
  const float2* rope;  // [.., n_pairs]
  Cache cache;         // with the page table of the first sequence
  const int* pos;      // [n]
  // Results of each sequence, group of heads (gridDim.x in a sequence) and split. sum_dim is
  // head_dim rounded up to whole 16 bytes.
  unsigned* counters;  // [n, groups] blocks that have stored their result
  float2* states;      // [n, groups, splits.n, kMostHeads] maximum and sum
  float* sums;         // [n, groups, splits.n, kMostHeads, sum_dim]
  int sum_dim, n_pairs, n_heads, heads_per_kv, blocks_per_kv;
  int table_pages;  // entries of a page table
  int window;       // positions that a query sees; kWindow
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

// For each sequence, out[h] = softmax_j(scale q'[h] . k[j]) v[j] over j <= pos of the head's keys
// and values; the last of those are k' and v, which are also written to the cache. q', k': q and k
// normed, if there are norms, and rotated by the angles of position pos. kWindow: over the last
// `window` of those positions. A sink of head h, if there is one, joins the softmax when all
// positions are merged.
//
//   cache     row pos is written and not read: the step's own k and v come from shared memory,
//             rounded as the cache holds them
//   launch    grid (key/value heads x blocks_per_kv, splits, n): a block has up to 8 query heads
//             of one key/value head and one range of positions (KvRange). Its warps take tiles of
//             16 or 32 positions in turn (decode_tile.cuh), each with its own softmax and its own
//             ring (decode_ring.cuh). Ranges follow from pos; blocks without one exit at once. The
//             last block of a group to arrive merges the splits and zeroes the counter. Two blocks,
//             or one and a block of a GEMV, fit on an SM. Dynamic smem: ring_bytes
//   order     pos and the cache before it are read ahead of wait_for_predecessor (launchers.h): the
//             ring of each warp is filled before it
//   requires  head_dim <= kD
//   maths     f32 rotation and softmax (ex2.approx); q rounded to F16; f16 x f16 summed in f32;
//             weights are rounded to F16 where they multiply v, but not in their sum. U8: codes are
//             exact in F16; k's scale multiplies the score, v's the weight, in f32. Everything is
//             merged in a fixed order
//   moves     2 n_kv_heads (pos + 1) head_dim elements of the cache of each sequence
//   source    Dao et al. 2023, "Flash-Decoding" (splits); Milakov and Gimelshein 2018 (merge)
template <int kD, bool kU8, bool kAligned, bool kWindow>
__global__ void __launch_bounds__(32 * decode_warps(kD), 2) decode_kernel(const DecodeArgs a) {
  using Tile = DecodeTile<kD, kU8, kWindow>;
  using Ring = CacheRing<kD, kU8, kAligned>;
  constexpr int kWarps = Ring::kWarps, kThreads = 32 * kWarps;
  constexpr int kRows = (kMostHeads + 2 + kWarps - 1) / kWarps;  // rows of q, k and v of a warp
  struct Shared {
    alignas(16) __half q[kMostHeads][kD + 8];
    NewRow<kD> fresh;
    float row[2][kD];
    SoftmaxState state[kWarps][kMostHeads];
    typename Ring::Shared ring[kWarps];
    bool is_last;
  };
  Shared& shared = ptx::static_shared<Shared>();
  auto& s_q = shared.q;
  auto& s_new = shared.fresh;
  auto& s_row = shared.row;
  auto& s_state = shared.state;
  uint8_t* const s_slots = ptx::dynamic_shared<128>();  // then float [kWarps, kMostHeads, kD]

  ptx::let_successor_begin();
  const int sequence = int(blockIdx.z), first_group = sequence * int(gridDim.x);
  const int pos = __ldcg(a.pos + sequence), kv_len = pos + 1;
  const int seen_from = kWindow ? max(0, kv_len - a.window) : 0;
  const KvRange range(a.splits, seen_from / Tile::kRows * Tile::kRows, kv_len, Tile::kRows);
  if (int(blockIdx.y) >= range.n_splits) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Cache cache = a.cache;
  cache.pages += int64_t{sequence} * a.table_pages;
  const int head_dim = cache.head_dim;
  const int kv_head = int(blockIdx.x) / a.blocks_per_kv;
  const int part = int(blockIdx.x) % a.blocks_per_kv;
  const int first_head = kv_head * a.heads_per_kv + part * kMostHeads;
  const int heads = min(kMostHeads, a.heads_per_kv - part * kMostHeads);
  const bool has_new = range.end == kv_len;

  Ring ring(s_slots, shared.ring[warp], cache, kv_head,
            {.begin = range.begin,
             .readable = min(range.end, pos),
             .end = range.end,
             .warp = warp,
             .turn = int(blockIdx.y * gridDim.x + blockIdx.x)});
  const Angles<kD> angles(a.rope + int64_t{pos} * a.n_pairs, a.n_pairs);
  RawRow<kD> norms[2];  // of q and k
  if (a.q_norm != nullptr) norms[0].load(a.q_norm, 0, head_dim, a.n_pairs);
  if (a.k_norm != nullptr) norms[1].load(a.k_norm, 0, head_dim, a.n_pairs);
  for (int i = threadIdx.x; i < kMostHeads * (kD + 8); i += kThreads) (&s_q[0][0])[i] = __half(0);
  s_new.clear();
  __syncthreads();
  ptx::wait_for_predecessor();

  // The step's own rows of q, k and v: each is read by one warp, and all reads are in flight at
  // once.
  const int n_rows = heads + (has_new ? 2 : 0);
  RawRow<kD> raw[kRows];
#pragma unroll
  for (int x = 0; x < kRows; ++x) {
    const int r = warp + x * kWarps;
    if (r >= n_rows) continue;
    const void* const from = r < heads ? a.q : r == heads ? a.k : a.v;
    const int row =
        r < heads ? sequence * a.n_heads + first_head + r : sequence * cache.n_kv_heads + kv_head;
    raw[x].load(from, row, head_dim, r <= heads ? a.n_pairs : 0);
  }
  int fresh = -1;  // the new key (0) or value (1), if this warp has one; it never has both
#pragma unroll
  for (int x = 0; x < kRows; ++x) {
    const int r = warp + x * kWarps;
    if (a.q_norm != nullptr && r < heads) {
      raw[x].normalize(norms[0], a.norm_eps, head_dim, a.is_bf16);
    } else if (a.k_norm != nullptr && r == heads && has_new) {
      raw[x].normalize(norms[1], a.norm_eps, head_dim, a.is_bf16);
    }
    if (r < heads) {
      raw[x].rotate(angles, head_dim, a.n_pairs, a.is_bf16,
                    [&](int i, float value) { s_q[r][i] = __float2half_rn(value); });
    } else if (r < n_rows) {
      fresh = r - heads;
      raw[x].rotate(angles, head_dim, fresh == 0 ? a.n_pairs : 0, a.is_bf16,
                    [&](int i, float value) { s_row[fresh][i] = value; });
    }
  }
  if (fresh >= 0) {
    __syncwarp();
    put_row<kU8>(s_row[fresh], fresh == 0, s_new, cache, kv_head, pos, part == 0);
  }
  __syncthreads();

  Tile tile(s_q[lane / 4], ring.row_bytes(), a.scale_log2, a.cap_log2);
  if constexpr (kWindow) {
    tile.see(0, seen_from, pos);
    tile.see(1, seen_from, pos);
  }
  for (int i = 0; i < ring.n_tiles(); ++i) {
    const TileRows keys = ring.take(s_new.bytes[0]);
    float scales[Tile::kUnits];
    ring.load_scales(scales);
    tile.take_keys(keys, scales, s_new.scale);
    ring.refill();
    tile.take_values(ring.take(s_new.bytes[1]));
    ring.refill();
  }
  // Reuses the memory of the warp's slots: no copy into them is left.
  float* const s_sums = reinterpret_cast<float*>(s_slots);
  constexpr int kWarpFloats = Ring::kWarpBytes / int{sizeof(float)};
  static_assert(kWarpFloats >= kMostHeads * kD);
  tile.store(s_state[warp], s_sums + warp * kWarpFloats, heads);
  __syncthreads();

  const int group = first_group + int(blockIdx.x);
  const BlockParts parts{.counter = a.counters + group,
                         .states = a.states,
                         .sums = a.sums,
                         .first = int64_t{group} * a.splits.n * kMostHeads,
                         .sum_dim = a.sum_dim,
                         .n_splits = range.n_splits,
                         .split = int(blockIdx.y)};
  merge_block<kD, kWarps>(parts, s_state, s_sums, kWarpFloats, heads, head_dim, shared.is_last,
                          [&](Merged whole, int head, int d) {
                            const int row = sequence * a.n_heads + first_head + head;
                            whole.add_sink(sink_log2(a.sinks, first_head + head));
                            whole.store(a.out, int64_t{row} * head_dim + d, head_dim - d,
                                        a.is_bf16);
                          });
}

}  // namespace minfer::cuda::attention
