#include <algorithm>

#include "kernels/cuda/attention/load_halves.cuh"
#include "kernels/cuda/attention/prefill.h"
#include "kernels/cuda/attention/softmax_state.cuh"
#include "kernels/cuda/attention/tensor_core.cuh"
#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/tensor_map.h"

namespace minfer::cuda::attention {
namespace {

constexpr int kQueries = 128, kKeys = 128, kThreads = 384;
constexpr int kBox = 128 * 64;  // halves of one copy: 128 rows of 64 dims, 128-byte swizzle

// kD: head_dim rounded up to 64, 96 or 128
template <int kD>
struct __align__(1024) Shared {
  static constexpr int kBoxes = (kD + 63) / 64;
  static constexpr int kStages = kD <= 64 ? 4 : 2;
  __half q[kBoxes][kBox], k[kStages][kBoxes][kBox], v[kStages][kBoxes][kBox];
  uint64_t k_full[kStages], k_empty[kStages], v_full[kStages], v_empty[kStages];
};

struct CacheMaps {
  CUtensorMap keys, values, last_keys, last_values;
  const int32_t* pages;  // null: pages follow one another from first_page on
  int first_page;
};

// out[t, h] = softmax_j(scale q[t, h] . k[h / r, j]) v[h / r, j] over j <= pos + t, r = n_heads /
// n_kv; kWindow: over the last `window` of those; kCap: of scores with the soft cap `cap`, which is
// in the unit of q . k; with a sink of each head in the softmax, if there are `sinks` [n_heads]
//
//   out, q     [n_tokens, n_heads, head_dim], 16-byte aligned rows; out T, q F16 or BF16
//   maps       the pages of keys and of values, F16, as tensors of boxes [128 keys, 64 dims]: a box
//              holds one page of one head, and `pages` gives the order of positions. The last page
//              has a map of its own, which ends at position pos + n_tokens. What lies past the end
//              of a map reads as zero, whatever memory holds there
//   launch     one block for 128 queries of a head: a producer warpgroup, of which one thread
//              copies K and V tiles into a ring, and two consumer warpgroups of 64 queries that
//              take turns: one uses the tensor cores while the other computes its softmax. Heads
//              run in groups whose K and V stay in L2; in a group, the longest rows come first
//   requires   head_dim <= kD, a multiple of 8; pos + n_tokens < 2^31
//   maths      f16 x f16 summed in f32; softmax f32 (ex2.approx); weights are rounded to F16 where
//              they multiply V, but not in their sum; BF16 q is rounded to F16
//   moves      4 n_tokens (pos + n_tokens / 2) n_heads head_dim flops
//   source     Shah et al. 2024, arXiv:2407.08608 (turns, softmax during the wgmma)
template <int kD, typename T, bool kWindow, bool kCap>
__global__ void __launch_bounds__(kThreads, 1)
    prefill_wgmma_kernel(T* out, const void* q, bool q_is_bf16,
                         const __grid_constant__ CacheMaps maps, int n_tokens, int n_heads,
                         int heads_per_kv, int head_dim, int pos, int window, int head_group,
                         float scale_log2, SoftCap cap, const float* sinks) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using S = Shared<kD>;
  constexpr int kStages = S::kStages, kBoxes = S::kBoxes;
  S& s = *reinterpret_cast<S*>(ptx::dynamic_shared());
  ptx::let_successor_begin();
  const int wg = ptx::warpgroup_index(), lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;

  const int n_rows = (n_tokens + kQueries - 1) / kQueries;  // tiles of kQueries queries
  const int per_group = head_group * n_rows;
  const int first_head = int(blockIdx.x) / per_group * head_group;
  const int here = min(head_group, n_heads - first_head), in_group = int(blockIdx.x) % per_group;
  const int head = first_head + in_group % here, row = n_rows - 1 - in_group / here;
  const int first = pos + row * kQueries;  // position of the tile's first query
  // Tiles of keys first_tile ... n_tiles - 1. Tiles before first_whole have keys that some of the
  // queries do not see any more.
  const int n_tiles = (min(first + kQueries, pos + n_tokens) + kKeys - 1) / kKeys;
  const int first_tile = kWindow ? max(0, first - window + 1) / kKeys : 0;
  const int first_whole = kWindow ? max(0, first + kQueries - window + kKeys - 1) / kKeys : 0;

  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(s.k_full + i, 1);
      ptx::mbarrier_init(s.v_full + i, 1);
      ptx::mbarrier_init(s.k_empty + i, 2);
      ptx::mbarrier_init(s.v_empty + i, 2);
    }
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  ptx::wait_for_predecessor();

  if (wg == 0) {
    ptx::shrink_registers<24>();
    if (threadIdx.x != 0) return;
    const int kv_head = head / heads_per_kv, n_kv_heads = n_heads / heads_per_kv;
    const int last_page = (pos + n_tokens - 1) / kKeys;
    int slot = 0, parity = 1;
    for (int j = first_tile; j < n_tiles; ++j) {
      const int page = maps.pages == nullptr ? j - maps.first_page : __ldg(maps.pages + j);
      const int matrix = page * n_kv_heads + kv_head;
      const CUtensorMap* const map_k = j == last_page ? &maps.last_keys : &maps.keys;
      const CUtensorMap* const map_v = j == last_page ? &maps.last_values : &maps.values;
      ptx::mbarrier_wait(s.k_empty + slot, parity);
      ptx::mbarrier_expect(s.k_full + slot, kBoxes * kBox * 2);
      for (int b = 0; b < kBoxes; ++b)
        copy_box(s.k[slot][b], map_k, s.k_full + slot, b * 64, 0, matrix);
      ptx::mbarrier_wait(s.v_empty + slot, parity);
      ptx::mbarrier_expect(s.v_full + slot, kBoxes * kBox * 2);
      for (int b = 0; b < kBoxes; ++b)
        copy_box(s.v[slot][b], map_v, s.v_full + slot, b * 64, 0, matrix);
      if (++slot == kStages) {
        slot = 0;
        parity ^= 1;
      }
    }
    return;
  }

  ptx::grow_registers<240>();
  const int c = wg - 1;
  const bool leader = threadIdx.x % 128 == 0;

  // Stores the queries in shared memory, swizzled as TMA does: chunk i of a row is at i ^ (row %
  // 8).
#pragma unroll
  for (int i = 0; i < 64 * kBoxes * 8 / 128; ++i) {
    const int at = i * 128 + int(threadIdx.x) % 128;
    const int r = c * 64 + at / (kBoxes * 8), chunk = at % (kBoxes * 8);
    Vec<__half> x = {};
    if (row * kQueries + r < n_tokens && chunk * 8 < head_dim) {
      const int64_t token = row * kQueries + r;
      x = load_halves(q, (token * n_heads + head) * head_dim + chunk * 8, q_is_bf16);
    }
    *reinterpret_cast<Vec<__half>*>(s.q[chunk / 8] + r * 64 + ((chunk ^ r) & 7) * 8) = x;
  }
  fence_for_wgmma();
  barrier_sync<128>(3 + c);

  float o[kD / 2], sc[64];
  uint32_t p[32];
  SoftmaxState state[2];  // of rows lane / 4 and 8 more; sums of this lane's columns
  float factor[2];
#pragma unroll
  for (int i = 0; i < kD / 2; ++i) o[i] = 0;
  int slot = 0, parity = 0;

  const auto start_scores = [&](int at) {
    const uint64_t dk = operand(s.k[at][0]), dq = operand(s.q[0] + c * 64 * 64);
#pragma unroll
    for (int k = 0; k < kD / 16; ++k) {
      const uint32_t step = (k / 4) * (kBox * 2 / 16) + (k % 4) * 2;
      wgmma_scores(sc, dq + step, dk + step, k > 0);
    }
    ptx::wgmma_commit();
  };
  const auto start_values = [&](int at) {
    const uint64_t dv = operand(s.v[at][0], kBox * 2);
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) wgmma_values(o, p + 4 * k, dv + k * (16 * 128 / 16));
    ptx::wgmma_commit();
  };
  const auto cap_scores = [&] {
    if constexpr (kCap) {
#pragma unroll
      for (float& score : sc) score = cap(score);
    }
  };
  // Masks keys past a row's own position, and in front of its window. Without a window, the first
  // tile leaves each row at least one key.
  const auto mask = [&](int tile) {
    const int last = first + c * 64 + warp * 16 + lane / 4 - tile * kKeys;
#pragma unroll
    for (int j = 0; j < 16; ++j)
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const int ahead = j * 8 + lane % 4 * 2 + (x & 1) - (last + (x >> 1) * 8);
        if (ahead > 0 || (kWindow && ahead <= -window)) sc[4 * j + x] = -INFINITY;
      }
  };
  const auto softmax = [&] {  // turns scores into weights in place, updates state, sets factor
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = sc[2 * r];
#pragma unroll
      for (int j = 0; j < 16; ++j)
        top = fmaxf(top, fmaxf(sc[4 * j + 2 * r], sc[4 * j + 2 * r + 1]));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      // A row that has seen no position yet keeps its state: -inf - -inf would be NaN.
      const bool is_unseen = kWindow && fmaxf(top, state[r].max) == -INFINITY;
      factor[r] = is_unseen ? 1.0f : state[r].raise_late(top * scale_log2);
      const float shift = is_unseen ? 0.0f : state[r].max;
      float sum = 0;
#pragma unroll
      for (int j = 0; j < 16; ++j)
#pragma unroll
        for (int x = 0; x < 2; ++x) {
          float& w = sc[4 * j + 2 * r + x];
          w = ptx::exp2_fast(fmaf(w, scale_log2, -shift));
          sum += w;
        }
      state[r].sum += sum;
    }
  };
  const auto pack = [&] {
#pragma unroll
    for (int i = 0; i < 32; ++i) p[i] = pack_halves(sc[2 * i], sc[2 * i + 1]);
  };

  // Turns: barrier 1 + c lets warpgroup c start its wgmma; warpgroup 0 goes first.
  if (c == 1) barrier_arrive<256>(1);
  ptx::mbarrier_wait(s.k_full, 0);
  barrier_sync<256>(1 + c);
  ptx::wgmma_fence();
  start_scores(0);
  barrier_arrive<256>(1 + (c ^ 1));
  ptx::wgmma_wait<0>();
  if (leader) ptx::mbarrier_arrive(s.k_empty);
  // Tiles before n_whole need no mask. With a count of its own for each warpgroup, the compiler
  // would see a divergent branch and serialize wgmma.
  const int n_whole = min((first + 1) / kKeys, n_tiles);
  cap_scores();
  if (first_tile >= n_whole || (kWindow && first_tile < first_whole)) mask(first_tile);
  softmax();
  pack();
  // The softmax of tile j runs while the tensor cores add tile j - 1 to o.
  const auto visit = [&]<bool kMasked>(int j) {
    const int before = slot, before_parity = parity;
    if (++slot == kStages) {
      slot = 0;
      parity ^= 1;
    }
    ptx::mbarrier_wait(s.k_full + slot, parity);
    barrier_sync<256>(1 + c);
    ptx::wgmma_fence();
    start_scores(slot);
    ptx::mbarrier_wait(s.v_full + before, before_parity);
    start_values(before);
    barrier_arrive<256>(1 + (c ^ 1));
    ptx::wgmma_wait<1>();
    if (leader) ptx::mbarrier_arrive(s.k_empty + slot);
    cap_scores();
    if constexpr (kMasked) mask(j);
    softmax();
    keep_in_front(state[0].sum + state[1].sum, s.q);
    ptx::wgmma_wait<0>();
    if (leader) ptx::mbarrier_arrive(s.v_empty + before);
    if (__any_sync(~0u, factor[0] != 1 || factor[1] != 1)) {
#pragma unroll
      for (int i = 0; i < kD / 2; ++i) o[i] *= factor[i >> 1 & 1];
    }
    pack();
  };
  int j = first_tile + 1;
  if constexpr (kWindow) {
#pragma unroll 1
    for (; j < min(first_whole, n_tiles); ++j) visit.template operator()<true>(j);
  }
#pragma unroll 1
  for (; j < n_whole; ++j) visit.template operator()<false>(j);
#pragma unroll 1
  for (; j < n_tiles; ++j) visit.template operator()<true>(j);
  ptx::mbarrier_wait(s.v_full + slot, parity);
  ptx::wgmma_fence();
  start_values(slot);
  ptx::wgmma_wait<0>();

#pragma unroll
  for (int r = 0; r < 2; ++r) {
    state[r].sum += __shfl_xor_sync(~0u, state[r].sum, 1);
    state[r].sum += __shfl_xor_sync(~0u, state[r].sum, 2);
    const float factor = state[r].take_sink(sink_log2(sinks, head));
    const float inverse = factor / state[r].sum;
    const int64_t token = row * kQueries + c * 64 + warp * 16 + lane / 4 + 8 * r;
    if (token >= n_tokens) continue;
    T* const to = out + (token * n_heads + head) * head_dim + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kD / 8; ++i) {
      if (i * 8 >= head_dim) break;
      struct alignas(4) Pair {
        T low, high;
      };
      *reinterpret_cast<Pair*>(to + i * 8) = {from_float<T>(o[4 * i + 2 * r] * inverse),
                                              from_float<T>(o[4 * i + 2 * r + 1] * inverse)};
    }
  }
#endif
}

// Map of the first n positions of each page of keys or values, as boxes of 64 dims of one head.
CUtensorMap cache_map(const Tensor& x, int64_t n) {
  const int64_t n_pages = x.shape[0], n_heads = x.shape[1], head_dim = x.shape[3];
  return make_heads_map(x.data, n, n_pages * n_heads, head_dim, kKeys * head_dim, kKeys);
}

// Query heads that run at the same time: all if their K and V take at most 32 MB and so stay in L2;
// else those whose K and V take 16 MB, or 4 if that is more. Measured:
// docs/benchmarks/cuda_prefill.md.
int64_t heads_at_a_time(int64_t n_heads, int64_t n_kv_heads, int64_t head_dim, int64_t kv_len) {
  const int64_t heads_per_kv = n_heads / n_kv_heads;
  const int64_t kv_bytes = 4 * kv_len * head_dim;  // of one key/value head
  if (kv_bytes * n_kv_heads <= 32 << 20) return n_heads;
  const int64_t n_kv = std::max((16 << 20) / kv_bytes, ceil_div(4, heads_per_kv));
  return std::min(n_heads, n_kv * heads_per_kv);
}

}  // namespace

bool has_prefill_wgmma(int64_t head_dim) {
  static const bool in_binary = runs_hopper_code(
      reinterpret_cast<const void*>(prefill_wgmma_kernel<128, __half, false, false>));
  return in_binary && head_dim % 8 == 0 && head_dim <= 128;
}

void prefill_wgmma(cudaStream_t stream, Tensor out, Tensor q, Tensor keys, Tensor values,
                   const int32_t* pages, int64_t pos, float scale, int64_t window, float softcap,
                   Tensor sinks) {
  static_assert(kKeys == kPagePositions);
  const int64_t n_tokens = q.shape[0], n_heads = q.shape[1], kv_len = pos + n_tokens;
  const int64_t n_kv_heads = keys.shape[1], head_dim = keys.shape[3];
  const int64_t seen_from = window > 0 ? std::max<int64_t>(0, pos + 1 - window) : 0;
  const int64_t n_of_last = kv_len - (pages_for(kv_len) - 1) * kKeys;
  const CacheMaps maps{.keys = cache_map(keys, kKeys),
                       .values = cache_map(values, kKeys),
                       .last_keys = cache_map(keys, n_of_last),
                       .last_values = cache_map(values, n_of_last),
                       .pages = pages,
                       .first_page = narrow<int>(seen_from / kKeys)};
  const auto run_kind = [&]<int kD, typename T, bool kWindow, bool kCap>() {
    const auto kernel = prefill_wgmma_kernel<kD, T, kWindow, kCap>;
    constexpr int kBytes = sizeof(Shared<kD>);
    MINFER_CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    const int64_t n_blocks = ceil_div(n_tokens, kQueries) * n_heads;
    launch(kernel, narrow<unsigned>(n_blocks), kThreads, kBytes, stream, data_of<T>(out), q.data,
           q.dtype == DType::BF16, maps, narrow<int>(n_tokens), narrow<int>(n_heads),
           narrow<int>(n_heads / n_kv_heads), narrow<int>(head_dim), narrow<int>(pos),
           window > 0 ? narrow<int>(window) : kNoWindow,
           narrow<int>(heads_at_a_time(n_heads, n_kv_heads, head_dim, kv_len)), scale * kLog2E,
           SoftCap::of(softcap, 1 / scale), data_of<const float>(sinks));
  };
  // There is no kernel for a soft cap without a window.
  const auto run = [&]<int kD, typename T>() {
    if (softcap > 0) return run_kind.template operator()<kD, T, true, true>();
    if (window > 0) return run_kind.template operator()<kD, T, true, false>();
    run_kind.template operator()<kD, T, false, false>();
  };
  visit_half(out.dtype, [&]<typename T>() {
    if (head_dim <= 64) return run.template operator()<64, T>();
    if (head_dim <= 96) return run.template operator()<96, T>();
    run.template operator()<128, T>();
  });
}

}  // namespace minfer::cuda::attention
