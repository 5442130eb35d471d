#pragma once

#include "kernels/cuda/attention/decode.h"
#include "kernels/cuda/attention/decode_rows.cuh"
#include "kernels/cuda/attention/softmax_state.cuh"
#include "kernels/cuda/numbers.cuh"

namespace minfer::cuda::attention {

constexpr int kWarps = 4, kThreads = 32 * kWarps;

struct DecodeArgs {
  void* out;              // [n_heads, head_dim]; out, q, k, v of F16 or BF16
  const void *q, *k, *v;  // [n_heads, head_dim], [n_kv_heads, head_dim]
  const float2* rope;     // [.., n_pairs]
  Cache cache;
  const int* pos;
  // Of each group of heads, gridDim.x in all, and of its splits; sums are rows of sum_dim floats,
  // head_dim and what fills the last 16 bytes.
  unsigned* counters;  // [groups] blocks that have left their part
  float2* states;      // [groups, splits.n, kMostHeads] maximum and sum
  float* sums;         // [groups, splits.n, kMostHeads, sum_dim]
  int sum_dim, n_pairs, heads_per_kv, blocks_per_kv;
  DecodeSplits splits;
  bool is_bf16;
  float scale_log2;
};

// What of the positions a block has.
struct Share {
  int n_splits, begin, end;
  __device__ Share(const DecodeSplits& s, int kv_len, int step) {
    const bool is_alone = s.n == 1 || kv_len <= s.most_alone;
    const int even = is_alone ? kv_len : max(s.least, (kv_len + s.n - 1) / s.n);
    const int chunk = (even + step - 1) / step * step;  // whole steps, for whole rows of an mma
    n_splits = (kv_len + chunk - 1) / chunk;
    begin = min(int(blockIdx.y) * chunk, kv_len);
    end = min(begin + chunk, kv_len);
  }
};

__device__ inline void add_scaled(float4& sum, float scale, const float4& x) {
  sum.x += scale * x.x, sum.y += scale * x.y, sum.z += scale * x.z, sum.w += scale * x.w;
}

// Results of parts of the positions, of one head, merged in their order: state and four elements.
struct Merged {
  SoftmaxState state;
  float4 sum = {};

  // n more parts; at least one part so far has seen a position.
  template <int n>
  __device__ void add(const float2 (&states)[n], const float4 (&sums)[n]) {
    float top = state.max;
#pragma unroll
    for (int i = 0; i < n; ++i) top = fmaxf(top, states[i].x);
    const float factor = state.raise(top);
    sum.x *= factor, sum.y *= factor, sum.z *= factor, sum.w *= factor;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const float share = state.share_of(states[i].x);
      state.sum += share * states[i].y;
      add_scaled(sum, share, sums[i]);
    }
  }
  __device__ void store(void* out, int64_t at, int n, bool is_bf16) const {
    const float elements[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (e < n) store_half(out, at + e, elements[e] / state.sum, is_bf16);
  }
};

// out[h] = softmax_j(scale q'[h] . k[j]) v[j] over j <= pos of the head's keys and values; the last
// of those are k' and v, which are also written to the cache. q', k': q and k turned by the angles
// of position pos.
//
//   cache     decode_tile.cuh; its row at pos is written and not read: the step's own k and v take
//             part from shared memory, rounded as the cache holds them
//   launch    grid (key/value heads x blocks_per_kv, splits): a block has up to 8 query heads of a
//             key/value head and one share of the positions; each of its 4 warps goes over its own
//             16 or 32 positions in turn, with its own softmax. Shares follow from pos; blocks
//             without one leave at once. The last block of a group to arrive merges the shares,
//             and zeroes the counter. 21.5 K registers and little memory a block: one fits beside a
//             product's block, three on an SM. Dynamic smem: kWarps * heads * kD floats
//   order     pos and the cache before it are read ahead of wait_for_predecessor (launchers.h): of
//             each warp the first step into registers, and its next one, or three in a block
//             without others, into L2
//   requires  head_dim <= kD; pos < capacity
//   maths     f32 rotation and softmax (ex2.approx); q rounded to F16; products f16 x f16 in f32;
//             weights rounded to F16 for the product with v, not for their sum. U8: levels are
//             exact in F16; k's scale multiplies the score, v's the weight, in f32. All merges in
//             a fixed order
//   moves     2 n_kv_heads (pos + 1) head_dim elements of the cache
//   source    Dao et al. 2023, "Flash-Decoding" (splits); Milakov and Gimelshein 2018 (merge)
template <int kD, bool kU8, bool kAligned>
__global__ void __launch_bounds__(kThreads, kD > 128 ? 2 : 3) decode_kernel(const DecodeArgs a) {
  using Tile = DecodeTile<kD, kU8, kAligned>;
  constexpr int kStep = Tile::kStep, kE = Tile::kE;
  constexpr int kRows = (kMostHeads + 2 + kWarps - 1) / kWarps;  // of q, k and v, of a warp
  __shared__ alignas(16) __half s_q[kMostHeads][kD + 8];
  __shared__ NewRow<kD> s_new;
  __shared__ float s_row[2][kD];
  __shared__ SoftmaxState s_state[kWarps][kMostHeads];
  __shared__ bool s_is_last;
  extern __shared__ __align__(16) float s_sums[];  // [kWarps, heads, kD]

  ptx::let_successor_begin();
  const int pos = __ldcg(a.pos), kv_len = pos + 1;
  const Share share(a.splits, kv_len, kStep);
  if (int(blockIdx.y) >= share.n_splits) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int head_dim = a.cache.head_dim;
  const int kv_head = int(blockIdx.x) / a.blocks_per_kv;
  const int part = int(blockIdx.x) % a.blocks_per_kv;
  const int first_head = kv_head * a.heads_per_kv + part * kMostHeads;
  const int heads = min(kMostHeads, a.heads_per_kv - part * kMostHeads);
  const int end = share.end;
  const bool has_new = end == kv_len;

  Tile tile(a.cache, kv_head, min(end, pos));
  int start = share.begin + warp * kStep;
  if (Tile::kAhead && start < end) {
    tile.load_keys(start);
    tile.load_values(start);
  }
  if (threadIdx.x == 0) {
    const int step = kWarps * kStep, steps = share.n_splits == 1 ? 4 : 2;
    tile.prefetch(share.begin + step, min(share.begin + steps * step, min(end, pos)));
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
  int fresh = -1;  // key (0) or value (1), where this warp has it: never both
#pragma unroll
  for (int x = 0; x < kRows; ++x) {
    const int r = warp + x * kWarps;
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
    put_row<kU8>(s_row[fresh], fresh == 0, s_new, a.cache, kv_head, pos, part == 0);
  }
  __syncthreads();

  uint32_t q[kD / 16][2];
  Tile::load_query(q, s_q[g]);
  float o[kD / 16][4] = {};
  SoftmaxState state[2];  // of heads 2 t and 2 t + 1; the sums are this lane's share
  float v_unit = 1e-30f;  // what o is in units of: the largest scale of a U8 value so far
  for (; start < end; start += kWarps * kStep) {
    const int next = start + kWarps * kStep;
    const bool holds_new = start <= pos && pos < start + kStep;
    if (!Tile::kAhead) tile.load_keys(start);
    if (holds_new) tile.put_new_keys(start, pos, s_new);
    float sc[Tile::kUnits][4];
    tile.scores(sc, q, start, end, a.scale_log2);
    if (!Tile::kAhead) {
      tile.load_values(start);
    } else if (next < end) {
      tile.load_keys(next);
    }

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
    if (holds_new) tile.put_new_values(start, pos, s_new);
    tile.add_values(o, sc);
    if (Tile::kAhead && next < end) tile.load_values(next);
  }

  // Warps' results. A lane holds dims kE (g + 8 i) ... of its two heads.
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int d = 4; d < 32; d *= 2) state[h].sum += __shfl_xor_sync(~0u, state[h].sum, d);
    const int head = 2 * t + h;
    if (head >= heads) continue;
    if (g == 0) s_state[warp][head] = state[h];
    const float unit = kU8 ? v_unit : 1.0f;
    float* const to = s_sums + (warp * heads + head) * kD;
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

  // The block's result: the output where no other block has a share.
  const auto for_each_four = [&](auto use) {  // use(head, first of four elements)
    for (int i = threadIdx.x; i < heads * (kD / 4); i += kThreads) {
      const int d = i % (kD / 4) * 4;
      if (d < head_dim) use(i / (kD / 4), d);
    }
  };
  const auto store = [&](const Merged& whole, int head, int d) {
    whole.store(a.out, int64_t{first_head + head} * head_dim + d, head_dim - d, a.is_bf16);
  };
  const int64_t group = int64_t{blockIdx.x} * a.splits.n * kMostHeads;
  for_each_four([&](int head, int d) {
    float2 states[kWarps];
    float4 sums[kWarps];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      states[w] = {s_state[w][head].max, s_state[w][head].sum};
      sums[w] = *reinterpret_cast<const float4*>(s_sums + (w * heads + head) * kD + d);
    }
    Merged whole;
    whole.add(states, sums);
    if (share.n_splits == 1) return store(whole, head, d);
    const int64_t at = group + int(blockIdx.y) * kMostHeads + head;
    if (d == 0) a.states[at] = {whole.state.max, whole.state.sum};
    *reinterpret_cast<float4*>(a.sums + at * a.sum_dim + d) = whole.sum;
  });
  if (share.n_splits == 1) return;

  __syncthreads();
  if (threadIdx.x == 0) {
    s_is_last = ptx::count_arrival(a.counters + blockIdx.x) + 1 == unsigned(share.n_splits);
    if (s_is_last) a.counters[blockIdx.x] = 0;
  }
  __syncthreads();
  if (!s_is_last) return;
  // All shares; __ldcg, since L1 may hold what was there before.
  constexpr int kBatch = 16;  // on their way at once
  for_each_four([&](int head, int d) {
    Merged whole;
    for (int first = 0; first < share.n_splits; first += kBatch) {
      float2 states[kBatch];
      float4 sums[kBatch];
#pragma unroll
      for (int x = 0; x < kBatch; ++x) {
        states[x] = {-INFINITY, 0};
        sums[x] = {};
        if (first + x >= share.n_splits) continue;
        const int64_t at = group + (first + x) * kMostHeads + head;
        states[x] = __ldcg(a.states + at);
        sums[x] = __ldcg(reinterpret_cast<const float4*>(a.sums + at * a.sum_dim + d));
      }
      whole.add(states, sums);
    }
    store(whole, head, d);
  });
}

}  // namespace minfer::cuda::attention
