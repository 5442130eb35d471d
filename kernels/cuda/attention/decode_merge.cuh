#pragma once

#include "kernels/cuda/attention/decode_rows.cuh"

// Merges the results of the warps of a block, and of the blocks that split the positions of a group
// of heads.
namespace minfer::cuda::attention {

__device__ inline void add_scaled(float4& sum, float scale, const float4& x) {
  sum.x += scale * x.x, sum.y += scale * x.y, sum.z += scale * x.z, sum.w += scale * x.w;
}

// The result of one head, merged from several ranges of positions in their order: the softmax state
// and four elements.
struct Merged {
  SoftmaxState state;
  float4 sum = {};

  // Adds the results of n more ranges.
  template <int n>
  __device__ void add(const float2 (&states)[n], const float4 (&sums)[n]) {
    float top = state.max;
#pragma unroll
    for (int i = 0; i < n; ++i) top = fmaxf(top, states[i].x);
    if (top == -INFINITY) return;  // no range so far has a position that counts
    const float factor = state.raise(top);
    sum.x *= factor, sum.y *= factor, sum.z *= factor, sum.w *= factor;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const float weight = state.weight_of(states[i].x);
      state.sum += weight * states[i].y;
      add_scaled(sum, weight, sums[i]);
    }
  }
  // The sink of the head joins, once, after all ranges.
  __device__ void add_sink(float sink) {
    const float factor = state.take_sink(sink);
    sum.x *= factor, sum.y *= factor, sum.z *= factor, sum.w *= factor;
  }
  __device__ void store(void* out, int64_t at, int n, bool is_bf16) const {
    const float elements[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (e < n) store_half(out, at + e, elements[e] / state.sum, is_bf16);
  }
};

// Where the blocks of one group of heads store the results of their splits.
struct BlockParts {
  unsigned* counter;  // blocks that have stored their result; zero before and after
  float2* states;     // [.., kMostHeads] maximum and sum
  float* sums;        // [.., kMostHeads, sum_dim]
  int64_t first;      // row of the group's first split in both
  int sum_dim, n_splits, split;
};

// Merges the results of the warps of a block; the last block of the group to arrive then merges the
// splits in their order. Calls store(whole, head, d) for elements d ... d + 3 of each head. All
// threads call it.
//
//   states   [kWarps, kMostHeads] shared; each head has seen a position in at least one split
//   sums     [kWarps] of warp_floats each, of which the first [kMostHeads, kD] are used; shared
//   is_last  a bool in shared memory
template <int kD, int kWarps, typename Store>
__device__ void merge_block(const BlockParts& parts,
                            const SoftmaxState (&states)[kWarps][kMostHeads], const float* sums,
                            int warp_floats, int heads, int head_dim, bool& is_last,
                            const Store& store) {
  constexpr int kThreads = 32 * kWarps;
  const auto for_each_four = [&](auto use) {  // use(head, first of four elements)
    for (int i = threadIdx.x; i < heads * (kD / 4); i += kThreads) {
      const int d = i % (kD / 4) * 4;
      if (d < head_dim) use(i / (kD / 4), d);
    }
  };
  // The result of this block, which is the output if there is one split.
  for_each_four([&](int head, int d) {
    float2 state[kWarps];
    float4 sum[kWarps];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      state[w] = {states[w][head].max, states[w][head].sum};
      sum[w] = *reinterpret_cast<const float4*>(sums + w * warp_floats + head * kD + d);
    }
    Merged whole;
    whole.add(state, sum);
    if (parts.n_splits == 1) return store(whole, head, d);
    const int64_t at = parts.first + parts.split * kMostHeads + head;
    if (d == 0) parts.states[at] = {whole.state.max, whole.state.sum};
    *reinterpret_cast<float4*>(parts.sums + at * parts.sum_dim + d) = whole.sum;
  });
  if (parts.n_splits == 1) return;

  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = ptx::count_arrival(parts.counter) + 1 == unsigned(parts.n_splits);
    if (is_last) *parts.counter = 0;
  }
  __syncthreads();
  if (!is_last) return;
  // Merges all splits. __ldcg, because L1 may hold what was there before.
  constexpr int kBatch = 16;  // loads in flight at once
  for_each_four([&](int head, int d) {
    Merged whole;
    for (int first = 0; first < parts.n_splits; first += kBatch) {
      float2 state[kBatch];
      float4 sum[kBatch];
#pragma unroll
      for (int x = 0; x < kBatch; ++x) {
        state[x] = {-INFINITY, 0};
        sum[x] = {};
        if (first + x >= parts.n_splits) continue;
        const int64_t at = parts.first + (first + x) * kMostHeads + head;
        state[x] = __ldcg(parts.states + at);
        sum[x] = __ldcg(reinterpret_cast<const float4*>(parts.sums + at * parts.sum_dim + d));
      }
      whole.add(state, sum);
    }
    store(whole, head, d);
  });
}

}  // namespace minfer::cuda::attention
