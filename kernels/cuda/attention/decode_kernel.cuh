#pragma once

#include "kernels/cuda/attention/decode.h"
#include "kernels/cuda/attention/decode_rows.cuh"
#include "kernels/cuda/attention/softmax_state.cuh"
#include "kernels/cuda/numbers.cuh"

namespace minfer::cuda::attention {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kMostCluster = 16;

struct DecodeArgs {
  void* out;              // [n_heads, head_dim]; out, q, k, v of F16 or BF16
  const void *q, *k, *v;  // [n_heads, head_dim], [n_kv_heads, head_dim]
  const float2* rope;     // [.., n_pairs]
  Cache cache;
  const int* pos;
  // Of each group of heads, gridDim.x in all, and for several clusters of it:
  unsigned* counters;  // [groups, cluster] blocks of that rank that have left their part
  float2* states;      // [groups, n_clusters, cluster, kMostHeads] maximum and sum
  float* sums;         // [groups, n_clusters, kMostHeads, head_dim]
  int n_pairs, heads_per_kv, blocks_per_kv;
  DecodeSplits splits;
  bool is_bf16;
  float scale_log2;
};

// Adds 1; what this block wrote before a barrier in front of this is seen by whoever adds later,
// and what they wrote by this block behind a barrier.
__device__ inline unsigned count_arrival(unsigned* counter) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  return before;
}

// What of the positions a block has, and with whom it merges.
struct Share {
  int begin, end;   // positions; none where they are equal
  int rank, ranks;  // of the blocks of its cluster that take part
  int cluster, clusters;
  __device__ Share(const DecodeSplits& s, int kv_len, int step) {
    const int alone = (kv_len + s.cluster - 1) / s.cluster;
    const bool is_alone = s.n_clusters == 1 || alone <= s.most_alone;
    const int blocks = is_alone ? s.cluster : s.cluster * s.n_clusters;
    const int even = max(s.least, (kv_len + blocks - 1) / blocks);
    const int chunk = (even + step - 1) / step * step;
    const int n_splits = (kv_len + chunk - 1) / chunk;
    rank = int(blockIdx.y) % s.cluster;
    cluster = int(blockIdx.y) / s.cluster;
    clusters = (n_splits + s.cluster - 1) / s.cluster;
    ranks = min(s.cluster, n_splits);
    begin = min(int(blockIdx.y) * chunk, kv_len);
    end = min(begin + chunk, kv_len);
  }
  __device__ bool takes_part() const { return rank < ranks && cluster < clusters; }
};

// Merged state of n parts of a head, in their order; part(i) is (maximum, sum).
template <typename Part>
__device__ SoftmaxState merged(int n, Part part) {
  SoftmaxState whole;
#pragma unroll 4
  for (int i = 0; i < n; ++i) whole.max = fmaxf(whole.max, part(i).x);
#pragma unroll 4
  for (int i = 0; i < n; ++i) {
    const float2 p = part(i);
    whole.sum += whole.share_of(p.x) * p.y;
  }
  return whole;
}

// out[h] = softmax_j(scale q'[h] . k[j]) v[j] over j <= pos of the head's keys and values; the last
// of those are k' and v, which are also written to the cache. q', k': q and k turned by the angles
// of position pos.
//
//   cache     decode_tile.cuh; its row at pos is written and not read: the step's own k and v take
//             part from shared memory, rounded as the cache holds them
//   launch    grid (key/value heads x blocks_per_kv, cluster x n_clusters), clusters along y: a
//             block has up to 8 query heads of a key/value head and one share of the positions; 8
//             warps in turns of 16 or 32. Shares follow from pos; blocks without one leave at once.
//             Blocks of a cluster put their results into each other's shared memory, each the slice
//             of the output that the other has to merge. Of several clusters the last to arrive
//             merges a slice, and zeroes its counter. Dynamic smem: kWarps * Tile::kWarpBytes
//   order     pos and the cache before it are read ahead of wait_for_predecessor: launchers.h
//   requires  head_dim <= kD; pos < capacity
//   maths     f32 rotation and softmax (ex2.approx); q rounded to F16; products f16 x f16 in f32;
//             weights rounded to F16 for the product with v, not for their sum. U8: levels are
//             exact in F16; k's scale multiplies the score, v's the weight, in f32. All merges in
//             the order of the positions
//   moves     2 n_kv_heads (pos + 1) head_dim elements of the cache
//   source    Dao et al. 2023, "Flash-Decoding" (splits); Milakov and Gimelshein 2018 (merge)
template <int kD, bool kU8, bool kAligned>
__global__ void __launch_bounds__(kThreads, kD > 128 ? 1 : 2) decode_kernel(const DecodeArgs a) {
  using Tile = DecodeTile<kD, kU8, kAligned>;
  constexpr int kStep = Tile::kStep, kSlots = Tile::kSlots, kE = Tile::kE;
  constexpr int kRows = (kMostHeads + 2 + kWarps - 1) / kWarps;  // of q, k and v, of a warp
  __shared__ alignas(16) __half s_q[kMostHeads][kD + 8];
  __shared__ NewRow<kD> s_new;
  __shared__ float s_row[2][kD];
  __shared__ SoftmaxState s_state[kWarps][kMostHeads];
  // What the blocks of a cluster left here: a slice each, and all their states.
  __shared__ float s_parts[kMostHeads * kD + kMostCluster];
  __shared__ float s_part_states[kMostCluster][kMostHeads][2];
  __shared__ bool s_is_last;
  extern __shared__ __align__(16) uint8_t s_ring[];

  ptx::let_successor_begin();
  const int pos = __ldcg(a.pos), kv_len = pos + 1;
  if (a.splits.cluster > 1) ptx::cluster_arrive();  // every block has begun
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int head_dim = a.cache.head_dim;
  const int kv_head = int(blockIdx.x) / a.blocks_per_kv;
  const int part = int(blockIdx.x) % a.blocks_per_kv;
  const int first_head = kv_head * a.heads_per_kv + part * kMostHeads;
  const int heads = min(kMostHeads, a.heads_per_kv - part * kMostHeads);
  const Share share(a.splits, kv_len, kStep);
  if (!share.takes_part()) {
    if (a.splits.cluster > 1) ptx::cluster_wait();
    if (share.ranks > 1) {  // the others' second barrier
      ptx::cluster_arrive();
      ptx::cluster_wait();
    }
    return;
  }
  const int end = share.end;
  const bool has_new = share.begin < end && end == kv_len;

  // Two groups of copies a step, keys and values; empty ones where there is no step.
  uint8_t* const ring = s_ring + warp * Tile::kWarpBytes;
  Tile tile(a.cache, kv_head, min(end, pos), ring);
  const int first = share.begin + warp * kStep;
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    const int start = first + slot * kWarps * kStep;
    if (start < end) tile.fetch_keys(slot, start);
    ptx::copy_async_commit();
    if (start < end) tile.fetch_values(slot, start);
    ptx::copy_async_commit();
  }
  const Angles<kD> angles(a.rope + int64_t{pos} * a.n_pairs, a.n_pairs);
  for (int i = threadIdx.x; i < kMostHeads * (kD + 8); i += kThreads) (&s_q[0][0])[i] = __half(0);
  s_new.clear();
  __syncthreads();
  ptx::wait_for_predecessor();

  // The step's own rows: one warp each, all under way at once.
  const int n_rows = heads + (has_new ? 2 : 0);
  RawRow<kD> raw[kRows];
#pragma unroll
  for (int x = 0; x < kRows; ++x) {
    const int r = warp + x * kWarps;
    if (r >= n_rows) continue;
    const void* const from = r < heads ? a.q : r == heads ? a.k : a.v;
    raw[x].load(from, r < heads ? first_head + r : kv_head, head_dim, r <= heads ? a.n_pairs : 0);
  }
#pragma unroll
  for (int x = 0; x < kRows; ++x) {
    const int r = warp + x * kWarps;
    if (r < heads) {
      raw[x].rotate(angles, head_dim, a.n_pairs, a.is_bf16,
                    [&](int i, float value) { s_q[r][i] = __float2half_rn(value); });
    } else if (r < n_rows) {
      const bool is_k = r == heads;
      float* const row = s_row[is_k ? 0 : 1];
      raw[x].rotate(angles, head_dim, is_k ? a.n_pairs : 0, a.is_bf16,
                    [&](int i, float value) { row[i] = value; });
      __syncwarp();
      put_row<kU8>(row, is_k, s_new, a.cache, kv_head, pos, part == 0);
    }
  }
  __syncthreads();

  uint32_t q[kD / 16][2];
  Tile::load_query(q, s_q[g]);
  float o[kD / 16][4] = {};
  SoftmaxState state[2];  // of heads 2 t and 2 t + 1; the sums are this lane's share
  float v_unit = 1e-30f;  // what o is in units of: the largest scale of a U8 value so far
  int slot = 0;
  for (int start = first; start < end; start += kWarps * kStep) {
    const int next = start + kSlots * kWarps * kStep;
    const bool holds_new = start <= pos && pos < start + kStep;
    ptx::copy_async_wait<2 * kSlots - 1>();
    if (holds_new) tile.put_new_keys(slot, start, pos, s_new);
    float sc[Tile::kUnits][4];
    tile.scores(sc, q, slot, start, end, a.scale_log2);
    if (next < end) tile.fetch_keys(slot, next);
    ptx::copy_async_commit();

    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = -INFINITY;
#pragma unroll
      for (int u = 0; u < Tile::kUnits; ++u) top = fmaxf(top, fmaxf(sc[u][h], sc[u][h + 2]));
#pragma unroll
      for (int d = 4; d < 32; d *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
      factor[h] = state[h].raise(top);
#pragma unroll
      for (int u = 0; u < Tile::kUnits; ++u) {
        sc[u][h] = exp2_fast(sc[u][h] - state[h].max);
        sc[u][h + 2] = exp2_fast(sc[u][h + 2] - state[h].max);
        state[h].sum += sc[u][h] + sc[u][h + 2];
      }
    }
    if constexpr (kU8) {
      const float change = tile.weigh(sc, v_unit);
      factor[0] *= change;
      factor[1] *= change;
    }
#pragma unroll
    for (int i = 0; i < kD / 16; ++i)
#pragma unroll
      for (int x = 0; x < 4; ++x) o[i][x] *= factor[x & 1];
    ptx::copy_async_wait<2 * kSlots - 1>();
    if (holds_new) tile.put_new_values(slot, start, pos, s_new);
    tile.add_values(o, sc, slot);
    if (next < end) tile.fetch_values(slot, next);
    ptx::copy_async_commit();
    slot = slot + 1 == kSlots ? 0 : slot + 1;
  }

  // Warps' results, each in its own ring, which is empty. A lane holds dims kE (g + 8 i) ... of its
  // two heads.
  static_assert(Tile::kWarpBytes >= kMostHeads * kD * int(sizeof(float)));
  __syncwarp();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int d = 4; d < 32; d *= 2) state[h].sum += __shfl_xor_sync(~0u, state[h].sum, d);
    const int head = 2 * t + h;
    if (head >= heads) continue;
    if (g == 0) s_state[warp][head] = state[h];
    const float unit = kU8 ? v_unit : 1.0f;
    float* const to = reinterpret_cast<float*>(ring) + head * kD;
#pragma unroll
    for (int i = 0; i < Tile::kValuePieces; ++i)
#pragma unroll
      for (int x = 0; x < kE / 4; ++x) {
        const float(&low)[4] = o[i * (kE / 2) + 2 * x], (&high)[4] = o[i * (kE / 2) + 2 * x + 1];
        *reinterpret_cast<float4*>(to + kE * (g + 8 * i) + 4 * x) =
            make_float4(low[h] * unit, low[h + 2] * unit, high[h] * unit, high[h + 2] * unit);
      }
  }
  __syncthreads();

  // The block's result, the warps' in their order, to the blocks that merge it: rank r has elements
  // r * slice ... of heads * head_dim.
  const int rank = share.rank, ranks = share.ranks, n = heads * head_dim;
  const int slice = (n + ranks - 1) / ranks;
  const auto warp_state = [&](int head) {
    return [&, head](int w) { return float2{s_state[w][head].max, s_state[w][head].sum}; };
  };
  if (a.splits.cluster > 1) ptx::cluster_wait();  // all have begun: there is memory to write to
  for (int i = threadIdx.x; i < n; i += kThreads) {
    const int head = i / head_dim, d = i % head_dim, owner = i / slice;
    const SoftmaxState whole = merged(kWarps, warp_state(head));
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      sum += whole.share_of(s_state[w][head].max) *
             reinterpret_cast<const float*>(s_ring + w * Tile::kWarpBytes)[head * kD + d];
    }
    ptx::store_in_cluster(s_parts + rank * slice + i - owner * slice, owner, sum);
  }
  for (int i = threadIdx.x; i < heads * ranks; i += kThreads) {
    const int head = i % heads, to = i / heads;
    const SoftmaxState whole = merged(kWarps, warp_state(head));
    ptx::store_in_cluster(&s_part_states[rank][head][0], to, whole.max);
    ptx::store_in_cluster(&s_part_states[rank][head][1], to, whole.sum);
  }
  if (ranks > 1) {
    ptx::cluster_arrive();
    ptx::cluster_wait();
  } else {
    __syncthreads();
  }

  const auto part_state = [&](int head) {
    return [&, head](int r) {
      return float2{s_part_states[r][head][0], s_part_states[r][head][1]};
    };
  };
  // Of this cluster; without another one it is the output.
  const int n_mine = min(slice, n - rank * slice);
  const int64_t group = blockIdx.x, at = group * a.splits.n_clusters;
  for (int j = threadIdx.x; j < n_mine; j += kThreads) {
    const int i = rank * slice + j, head = i / head_dim;
    const SoftmaxState whole = merged(ranks, part_state(head));
    float sum = 0;
    for (int r = 0; r < ranks; ++r)
      sum += whole.share_of(s_part_states[r][head][0]) * s_parts[r * slice + j];
    if (share.clusters == 1) {
      store_half(a.out, int64_t{first_head} * head_dim + i, sum / whole.sum, a.is_bf16);
    } else {
      a.sums[(at + share.cluster) * kMostHeads * head_dim + i] = sum;
    }
  }
  if (share.clusters == 1) return;

  const auto state_at = [&](int cluster, int head) {
    return ((at + cluster) * a.splits.cluster + rank) * kMostHeads + head;
  };
  if (threadIdx.x < heads) {
    const SoftmaxState whole = merged(ranks, part_state(int(threadIdx.x)));
    a.states[state_at(share.cluster, int(threadIdx.x))] = {whole.max, whole.sum};
  }
  __syncthreads();
  unsigned* const counter = a.counters + group * a.splits.cluster + rank;
  if (threadIdx.x == 0) {
    s_is_last = count_arrival(counter) + 1 == unsigned(share.clusters);
    if (s_is_last) *counter = 0;
  }
  __syncthreads();
  if (!s_is_last) return;
  // __ldcg, since L1 may hold what was there before.
  for (int j = threadIdx.x; j < n_mine; j += kThreads) {
    const int i = rank * slice + j, head = i / head_dim;
    const SoftmaxState whole =
        merged(share.clusters, [&](int c) { return __ldcg(a.states + state_at(c, head)); });
    float sum = 0;
#pragma unroll 4
    for (int c = 0; c < share.clusters; ++c) {
      sum += whole.share_of(__ldcg(&a.states[state_at(c, head)].x)) *
             __ldcg(a.sums + (at + c) * kMostHeads * head_dim + i);
    }
    store_half(a.out, int64_t{first_head} * head_dim + i, sum / whole.sum, a.is_bf16);
  }
}

}  // namespace minfer::cuda::attention
