#include <algorithm>

#include "kernels/cuda/attention/decode_tile.cuh"
#include "kernels/cuda/attention/quantize_row.cuh"
#include "kernels/cuda/attention/rotate.cuh"
#include "kernels/cuda/attention/softmax_state.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/numbers.cuh"

namespace minfer::cuda {
namespace attention {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps, kBlocksPerSm = 3;
constexpr int kMostSplits = 64;
constexpr int kUnsplit = 256;  // positions below which one block is faster than a merge
constexpr int kLeastChunk = 128;

struct DecodeArgs {
  void* out;              // [n_heads, head_dim]; out, q, k, v of F16 or BF16
  const void *q, *k, *v;  // [n_heads, head_dim], [n_kv_heads, head_dim]
  const float2* rope;     // [.., n_pairs]
  Cache cache;
  const int* pos;
  unsigned* counters;  // [gridDim.x] blocks that have left their partial result
  float2* states;      // [gridDim.x, gridDim.y, heads_here] maximum and sum
  float* sums;         // [gridDim.x, gridDim.y, heads_here, head_dim]
  int n_pairs, heads_per_kv, blocks_per_kv;
  bool is_bf16;
  float scale_log2;
};

__device__ float load_half(const void* x, int64_t i, bool is_bf16) {
  const unsigned short raw = static_cast<const unsigned short*>(x)[i];
  return is_bf16 ? __uint_as_float(uint32_t{raw} << 16) : __half2float(__ushort_as_half(raw));
}
__device__ void store_half(void* x, int64_t i, float value, bool is_bf16) {
  if (is_bf16) {
    static_cast<__nv_bfloat16*>(x)[i] = __float2bfloat16_rn(value);
  } else {
    static_cast<__half*>(x)[i] = __float2half_rn(value);
  }
}

// Elements of a row as emit(i, value), f32 and turned; by a warp, each element by one lane.
template <typename Emit>
__device__ void rotate_row(const void* x, int64_t row, int head_dim, const float2* angles,
                           int n_pairs, bool is_bf16, Emit emit) {
  const int lane = threadIdx.x % 32;
  for (int i = lane; i < n_pairs; i += 32) {
    const float2 r = rotated(load_half(x, row + i, is_bf16),
                             load_half(x, row + i + n_pairs, is_bf16), angles[i]);
    emit(i, r.x);
    emit(i + n_pairs, r.y);
  }
  for (int i = 2 * n_pairs + lane; i < head_dim; i += 32) emit(i, load_half(x, row + i, is_bf16));
}

// Adds 1; what this block wrote before a barrier in front of this is seen by whoever adds later,
// and what they wrote by this block behind a barrier.
__device__ unsigned count_arrival(unsigned* counter) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  return before;
}

// The positions of a split; a whole number of warps' steps where there are several.
__device__ int chunk_of(int kv_len, int n_splits, int step) {
  if (kv_len <= kUnsplit) return kUnsplit;
  const int even = (kv_len + n_splits - 1) / n_splits;
  return max(kLeastChunk, (even + step - 1) / step * step);
}

// out[h] = softmax_j(scale q'[h] . k[j]) v[j] over j <= pos of the head's keys and values; the last
// of those are k' and v, which are also written to the cache. q', k': q and k turned by the angles
// of position pos.
//
//   cache     decode_tile.cuh; its row at pos is written and not read: the step's own k and v take
//             part from shared memory, rounded as the cache holds them
//   launch    grid (key/value heads x blocks_per_kv, splits): a block has up to 8 query heads of a
//             key/value head and one split of the positions; 4 warps in turns of 16 or 32. The
//             number of splits in use follows from pos; blocks beyond leave at once. The last block
//             of a head to arrive merges all its splits, in their order, and zeroes the counter.
//             Dynamic smem: kWarps * heads * kD floats
//   requires  head_dim <= kD; pos < capacity
//   maths     f32 rotation and softmax (ex2.approx); q rounded to F16; products f16 x f16 in f32;
//             weights rounded to F16 for the product with v, not for their sum. U8: levels are
//             exact in F16; k's scale multiplies the score, v's the weight, in f32
//   moves     2 n_kv_heads (pos + 1) head_dim elements of the cache
//   source    Dao et al. 2023, "Flash-Decoding" (splits); Milakov and Gimelshein 2018 (merge)
template <int kD, bool kU8, bool kAligned>
__global__ void __launch_bounds__(kThreads, kD > 128 ? 2 : kBlocksPerSm)
    decode_kernel(const DecodeArgs a) {
  using Tile = DecodeTile<kD, kU8, kAligned>;
  constexpr int kStep = Tile::kStep;
  constexpr bool kAhead = kD <= 128;  // the next step's rows are loaded as registers become free
  __shared__ alignas(16) __half s_q[kMostHeads][kD + 8];
  __shared__ NewRow<kD> s_new;
  __shared__ float s_row[2][kD];
  __shared__ SoftmaxState s_state[kWarps][kMostHeads];
  __shared__ float s_share[kMostHeads][kMostSplits];
  __shared__ bool s_is_last;
  extern __shared__ __align__(16) float s_sums[];  // [kWarps, heads, kD]

  ptx::let_successor_begin();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int head_dim = a.cache.head_dim;
  const int kv_head = int(blockIdx.x) / a.blocks_per_kv;
  const int part = int(blockIdx.x) % a.blocks_per_kv;
  const int first_head = kv_head * a.heads_per_kv + part * kMostHeads;
  const int heads = min(kMostHeads, a.heads_per_kv - part * kMostHeads);
  for (int i = threadIdx.x; i < kMostHeads * (kD + 8); i += kThreads) (&s_q[0][0])[i] = __half(0);
  s_new.clear();
  ptx::wait_for_predecessor();

  const int pos = *a.pos, kv_len = pos + 1;
  const int chunk = chunk_of(kv_len, int(gridDim.y), kStep);
  const int n_splits = (kv_len + chunk - 1) / chunk, split = int(blockIdx.y);
  if (split >= n_splits) return;
  const int begin = split * chunk, end = min(begin + chunk, kv_len);
  const bool has_new = end == kv_len;

  Tile tile(a.cache, kv_head, min(end, pos));
  int start = begin + warp * kStep;
  if (kAhead && start < end) {
    tile.load_keys(start);
    tile.load_values(start);
  }

  // The step's own rows: one warp each.
  __syncthreads();  // s_q and s_new are zero
  const float2* const angles = a.rope + int64_t{pos} * a.n_pairs;
  for (int r = warp; r < heads + (has_new ? 2 : 0); r += kWarps) {
    if (r < heads) {
      rotate_row(a.q, int64_t{first_head + r} * head_dim, head_dim, angles, a.n_pairs, a.is_bf16,
                 [&](int i, float x) { s_q[r][i] = __float2half_rn(x); });
      continue;
    }
    const bool is_k = r == heads;
    float* const row = s_row[is_k ? 0 : 1];
    rotate_row(is_k ? a.k : a.v, int64_t{kv_head} * head_dim, head_dim, angles,
               is_k ? a.n_pairs : 0, a.is_bf16, [&](int i, float x) { row[i] = x; });
    __syncwarp();
    const int64_t at = kv_head * a.cache.capacity + pos;
    void* const to = is_k ? a.cache.keys : a.cache.values;
    if constexpr (kU8) {
      float largest = 0;
      for (int i = lane; i < head_dim; i += 32) largest = fmaxf(largest, fabsf(row[i]));
      const RowScale scale = row_scale(largest);
      if (lane == 0) {
        s_new.scale[is_k ? 0 : 1] = scale.step;
        if (part == 0) (is_k ? a.cache.key_scales : a.cache.value_scales)[at] = scale.step;
      }
      for (int i = lane; i < head_dim; i += 32) {
        const uint8_t level = level_of(row[i], scale);
        s_new.levels(is_k)[i] = level;
        if (part == 0) static_cast<uint8_t*>(to)[at * head_dim + i] = level;
      }
    } else {
      for (int i = lane; i < head_dim; i += 32) {
        const __half x = __float2half_rn(row[i]);
        s_new.halves(is_k)[i] = x;
        if (part == 0) static_cast<__half*>(to)[at * head_dim + i] = x;
      }
    }
  }
  __syncthreads();

  uint32_t q[kD / 32][4];
#pragma unroll
  for (int i = 0; i < kD / 32; ++i) {
    const uint4 x = *reinterpret_cast<const uint4*>(&s_q[g][8 * (t + 4 * i)]);
    q[i][0] = x.x, q[i][1] = x.y, q[i][2] = x.z, q[i][3] = x.w;
  }
  float o[kD / 16][4] = {};
  SoftmaxState state[2];  // of heads 2 t and 2 t + 1; the sums are this lane's share
  float v_unit = 1e-30f;  // what o is in units of: the largest scale of a U8 value so far
  for (; start < end; start += kWarps * kStep) {
    const int next = start + kWarps * kStep;
    const bool holds_new = start <= pos && pos < start + kStep;
    if (!kAhead) tile.load_keys(start);
    if (holds_new) tile.put_new_keys(start, pos, s_new);
    float sc[Tile::kUnits][4];
    tile.scores(sc, q, start, end, a.scale_log2);
    if (kAhead && next < end) tile.load_keys(next);
    if (!kAhead) tile.load_values(start);
    if (holds_new) tile.put_new_values(start, pos, s_new);

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
    tile.add_values(o, sc);
    if (kAhead && next < end) tile.load_values(next);
  }

  // Warps' results to shared memory. A lane holds dims 8 (g + 8 i) ... + 7 of its two heads.
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int d = 4; d < 32; d *= 2) state[h].sum += __shfl_xor_sync(~0u, state[h].sum, d);
    const int head = 2 * t + h;
    if (head >= heads) continue;
    if (g == 0) s_state[warp][head] = state[h];
    const float unit = kU8 ? v_unit : 1.0f;
#pragma unroll
    for (int i = 0; i < kD / 64; ++i)
#pragma unroll
      for (int x = 0; x < 2; ++x) {
        const float(&low)[4] = o[4 * i + 2 * x], (&high)[4] = o[4 * i + 2 * x + 1];
        *reinterpret_cast<float4*>(s_sums + (warp * heads + head) * kD + 8 * (g + 8 * i) + 4 * x) =
            make_float4(low[h] * unit, low[h + 2] * unit, high[h] * unit, high[h + 2] * unit);
      }
  }
  __syncthreads();

  // The block's result: the warps' in their order. Without another split it is the output.
  const int64_t slot = (int64_t{blockIdx.x} * gridDim.y + split) * heads;
  for (int i = threadIdx.x; i < heads * head_dim; i += kThreads) {
    const int head = i / head_dim, d = i % head_dim;
    SoftmaxState whole;
    for (int w = 0; w < kWarps; ++w) whole.max = fmaxf(whole.max, s_state[w][head].max);
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) {
      const float share = whole.share_of(s_state[w][head].max);
      whole.sum += share * s_state[w][head].sum;
      sum += share * s_sums[(w * heads + head) * kD + d];
    }
    if (n_splits == 1) {
      store_half(a.out, int64_t{first_head} * head_dim + i, sum / whole.sum, a.is_bf16);
    } else {
      a.sums[slot * head_dim + i] = sum;
      if (d == 0) a.states[slot + head] = {whole.max, whole.sum};
    }
  }
  if (n_splits == 1) return;

  __syncthreads();
  if (threadIdx.x == 0)
    s_is_last = count_arrival(a.counters + blockIdx.x) + 1 == unsigned(n_splits);
  __syncthreads();
  if (!s_is_last) return;
  if (threadIdx.x == 0) a.counters[blockIdx.x] = 0;

  // The splits in their order; __ldcg, since L1 may hold what was there before.
  const int64_t first_slot = int64_t{blockIdx.x} * gridDim.y * heads;
  constexpr int kEarly = 4;  // sums that are on their way while the shares are computed
  float early[kEarly];
#pragma unroll
  for (int s = 0; s < kEarly; ++s) {
    early[s] = s < n_splits && threadIdx.x < heads * head_dim
                   ? __ldcg(a.sums + (first_slot + s * heads) * head_dim + threadIdx.x)
                   : 0.0f;
  }
  for (int head = warp; head < heads; head += kWarps) {
    float2 parts[kMostSplits / 32];
    SoftmaxState whole;
#pragma unroll
    for (int x = 0; x < kMostSplits / 32; ++x) {
      const int s = x * 32 + lane;
      parts[x] = s < n_splits ? __ldcg(a.states + first_slot + s * heads + head)
                              : make_float2(-INFINITY, 0.0f);
      whole.max = fmaxf(whole.max, parts[x].x);
    }
#pragma unroll
    for (int d = 16; d > 0; d /= 2)
      whole.max = fmaxf(whole.max, __shfl_xor_sync(~0u, whole.max, d));
#pragma unroll
    for (int x = 0; x < kMostSplits / 32; ++x) {
      whole.sum += whole.share_of(parts[x].x) * parts[x].y;
    }
#pragma unroll
    for (int d = 16; d > 0; d /= 2) whole.sum += __shfl_xor_sync(~0u, whole.sum, d);
#pragma unroll
    for (int x = 0; x < kMostSplits / 32; ++x)
      s_share[head][x * 32 + lane] = whole.share_of(parts[x].x) / whole.sum;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < heads * head_dim; i += kThreads) {
    const float* const share = s_share[i / head_dim];
    const float* const from = a.sums + first_slot * head_dim + i;
    float sum = 0;
#pragma unroll
    for (int s = 0; s < kEarly; ++s) {
      if (s >= n_splits) break;
      sum += share[s] * (i < kThreads ? early[s] : __ldcg(from + int64_t{s} * heads * head_dim));
    }
#pragma unroll 8
    for (int s = kEarly; s < n_splits; ++s)
      sum += share[s] * __ldcg(from + int64_t{s} * heads * head_dim);
    store_half(a.out, int64_t{first_head} * head_dim + i, sum, a.is_bf16);
  }
}

// What the capacity and the card fix: the grid, and where the workspace holds what.
struct DecodePlan {
  int64_t blocks_per_kv, grid_x, n_splits, most_heads;  // most_heads: of a block
  int64_t states_at, sums_at, n_bytes;
};

DecodePlan plan_of(int64_t n_heads, int64_t n_kv_heads, int64_t head_dim, int64_t capacity) {
  int device = 0, n_sms = 0;
  MINFER_CUDA_CHECK(cudaGetDevice(&device));
  MINFER_CUDA_CHECK(cudaDeviceGetAttribute(&n_sms, cudaDevAttrMultiProcessorCount, device));
  DecodePlan plan{};
  const int64_t heads_per_kv = n_heads / n_kv_heads;
  plan.blocks_per_kv = ceil_div(heads_per_kv, kMostHeads);
  plan.grid_x = n_kv_heads * plan.blocks_per_kv;
  const int64_t most = std::min<int64_t>(kMostSplits, ceil_div(capacity, kLeastChunk));
  plan.n_splits = std::clamp<int64_t>(kBlocksPerSm * n_sms / plan.grid_x, 1, most);
  plan.most_heads = std::min<int64_t>(heads_per_kv, kMostHeads);
  const int64_t n_slots = plan.grid_x * plan.n_splits * plan.most_heads;
  plan.states_at = align_up(plan.grid_x * int64_t{sizeof(unsigned)}, 256);
  plan.sums_at = plan.states_at + align_up(n_slots * int64_t{sizeof(float2)}, 256);
  plan.n_bytes = plan.sums_at + n_slots * head_dim * int64_t{sizeof(float)};
  return plan;
}

bool rows_aligned(const KvLayer& cache) {
  const auto aligned = [](const Tensor& x) {
    return reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
  };
  return cache.head_dim % 8 == 0 && aligned(cache.keys) && aligned(cache.values);
}

}  // namespace
}  // namespace attention

int64_t attention_decode_workspace(int64_t n_heads, int64_t n_kv_heads, int64_t head_dim,
                                   int64_t capacity) {
  return attention::plan_of(n_heads, n_kv_heads, head_dim, capacity).n_bytes;
}

void attention_decode(cudaStream_t stream, const AttentionDecode& a) {
  using namespace attention;
  MINFER_CHECK(a.cache != nullptr && a.pos != nullptr && a.workspace != nullptr,
               "attention: no cache, position or workspace");
  const KvLayer& cache = *a.cache;
  const int64_t n_heads = a.q.shape[0], n_kv_heads = cache.n_kv_heads, head_dim = cache.head_dim;
  const Shape kv_shape{n_kv_heads, head_dim};
  MINFER_CHECK(n_kv_heads > 0 && n_heads > 0 && n_heads % n_kv_heads == 0 &&
                   a.q.shape == (Shape{n_heads, head_dim}) && a.out.shape == a.q.shape &&
                   a.k.shape == kv_shape && a.v.shape == kv_shape,
               "attention: q ", a.q.shape, ", k ", a.k.shape, ", v ", a.v.shape, ", out ",
               a.out.shape, ", a cache of ", kv_shape);
  const DType dtype = a.q.dtype;
  MINFER_CHECK((dtype == DType::F16 || dtype == DType::BF16) && a.k.dtype == dtype &&
                   a.v.dtype == dtype && a.out.dtype == dtype,
               "attention: q ", dtype, ", k ", a.k.dtype, ", v ", a.v.dtype, ", out ", a.out.dtype);
  MINFER_CHECK(cache.dtype == DType::F16 || cache.dtype == DType::U8, "attention: a cache of ",
               cache.dtype);
  MINFER_CHECK(head_dim > 0 && head_dim <= 256, "attention: head_dim ", head_dim, " is past 256");
  MINFER_CHECK(!a.rope || (a.rope.dtype == DType::F32 && a.rope.shape.rank == 3 &&
                           a.rope.shape[2] == 2 && 2 * a.rope.shape[1] <= head_dim),
               "attention: heads of ", head_dim, ", angles ", a.rope.shape);
  MINFER_CHECK(a.scale > 0, "attention: a scale of ", a.scale);
  MINFER_CHECK(cache.capacity * head_dim < int64_t{1} << 30, "attention: a cache of ",
               cache.capacity, " positions of ", head_dim);

  const DecodePlan plan = plan_of(n_heads, n_kv_heads, head_dim, cache.capacity);
  std::byte* const workspace = static_cast<std::byte*>(a.workspace);
  const DecodeArgs args{
      .out = a.out.data,
      .q = a.q.data,
      .k = a.k.data,
      .v = a.v.data,
      .rope = data_of<const float2>(a.rope),
      .cache = {.keys = cache.keys.view().data,
                .values = cache.values.view().data,
                .key_scales = data_of<float>(cache.key_scales),
                .value_scales = data_of<float>(cache.value_scales),
                .capacity = cache.capacity,
                .head_dim = narrow<int>(head_dim)},
      .pos = a.pos,
      .counters = reinterpret_cast<unsigned*>(workspace),
      .states = reinterpret_cast<float2*>(workspace + plan.states_at),
      .sums = reinterpret_cast<float*>(workspace + plan.sums_at),
      .n_pairs = narrow<int>(a.rope ? a.rope.shape[1] : 0),
      .heads_per_kv = narrow<int>(n_heads / n_kv_heads),
      .blocks_per_kv = narrow<int>(plan.blocks_per_kv),
      .is_bf16 = dtype == DType::BF16,
      .scale_log2 = a.scale * 1.44269504088896341f,
  };
  const dim3 grid(narrow<unsigned>(plan.grid_x), narrow<unsigned>(plan.n_splits));
  const auto run = [&]<int kD, bool kU8, bool kAligned>() {
    const size_t n_bytes = size_t(kWarps * plan.most_heads * kD) * sizeof(float);
    const auto kernel = decode_kernel<kD, kU8, kAligned>;
    MINFER_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           int(kWarps * kMostHeads * kD * sizeof(float))));
    launch(kernel, grid, kThreads, n_bytes, stream, args);
  };
  const auto run_size = [&]<bool kU8>() {
    if (!rows_aligned(cache)) return run.template operator()<256, kU8, false>();
    if (head_dim <= 64) return run.template operator()<64, kU8, true>();
    if (head_dim <= 128) return run.template operator()<128, kU8, true>();
    run.template operator()<256, kU8, true>();
  };
  if (cache.dtype == DType::U8) return run_size.template operator()<true>();
  run_size.template operator()<false>();
}

}  // namespace minfer::cuda
