#include <algorithm>

#include "kernels/cuda/attention/decode_merge.cuh"
#include "kernels/cuda/attention/decode_ring.cuh"
#include "kernels/cuda/attention/prefill.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/numbers.cuh"

namespace minfer::cuda::attention {
namespace {

struct QueriesArgs {
  void* out;      // [n_tokens, n_heads, head_dim] F16 or BF16
  const void* q;  // the same
  Cache cache;
  unsigned* counters;  // [gridDim.x]
  float2* states;      // [gridDim.x, gridDim.y, kMostHeads]
  float* sums;         // [gridDim.x, gridDim.y, kMostHeads, sum_dim]
  int sum_dim, n_tokens, n_heads, heads_per_kv, blocks_per_kv;
  int pos, positions_per_split;
  int first_seen;  // where splits begin: the tile with the first position of the first query
  int window;      // positions that a query sees, or kNoWindow
  bool q_is_bf16, out_is_bf16;
  float scale_log2;
  SoftCap cap_log2;
  const float* sinks;  // [n_heads], or null
};

// out[t, h] = softmax_j(scale q[t, h] . k[j]) v[j] over j <= pos + t of the head's keys and values:
// decode attention (decode_kernel.cuh) for several queries, whose rows are in the cache already.
//
//   launch    grid (key/value heads x blocks_per_kv, splits): a block has 8 columns of a key/value
//             head, that is (query, head) pairs, query by query, and one split of the positions.
//             The splits divide positions first_seen ... pos; the last one takes those behind pos
//             too. The last block of a group to arrive merges them. Dynamic smem: ring_bytes
//   requires  head_dim <= kD; the last split begins at or before pos; counters are zero
//   maths     as decode_kernel: q rounded to F16; f16 x f16 summed in f32; codes are exact in F16;
//             k's scale multiplies the score, v's the weight, in f32; weights are rounded to F16
//             where they multiply v. Everything is merged in a fixed order
//   moves     2 n_kv_heads (pos + n_tokens) (head_dim + 4) bytes of the cache for each of the
//             blocks_per_kv blocks; all but the first of them may read from L2
template <int kD, bool kAligned>
__global__ void __launch_bounds__(32 * decode_warps(kD), 2)
    decode_queries_kernel(const QueriesArgs a) {
  using Tile = DecodeTile<kD, true, true>;
  using Ring = CacheRing<kD, true, kAligned>;
  constexpr int kWarps = Ring::kWarps, kThreads = 32 * kWarps;
  struct Shared {
    alignas(16) __half q[kMostHeads][kD + 8];
    uint4 zeros[kD / 16];  // stands for rows behind the last position, and their scales
    SoftmaxState state[kWarps][kMostHeads];
    typename Ring::Shared ring[kWarps];
    bool is_last;
  };
  Shared& shared = ptx::static_shared<Shared>();
  auto& s_q = shared.q;
  auto& s_zeros = shared.zeros;
  auto& s_state = shared.state;
  uint8_t* const s_slots = ptx::dynamic_shared<128>();  // then float [kWarps, kMostHeads, kD]

  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int head_dim = a.cache.head_dim;
  const int kv_head = int(blockIdx.x) / a.blocks_per_kv;
  const int first_column = int(blockIdx.x) % a.blocks_per_kv * kMostHeads;
  const int columns = min(kMostHeads, a.n_tokens * a.heads_per_kv - first_column);
  const int begin = a.first_seen + int(blockIdx.y) * a.positions_per_split;
  const bool is_last_split = blockIdx.y + 1 == gridDim.y;
  const int end = is_last_split ? a.pos + a.n_tokens : begin + a.positions_per_split;

  Ring ring(s_slots, shared.ring[warp], a.cache, kv_head,
            {.begin = begin,
             .readable = end,
             .end = end,
             .warp = warp,
             .turn = int(blockIdx.y * gridDim.x + blockIdx.x)});
  const auto token_of = [&](int column) { return (first_column + column) / a.heads_per_kv; };
  // The index of a row of q and out.
  const auto row_of = [&](int column) {
    const int head = (first_column + column) % a.heads_per_kv;
    return int64_t{token_of(column)} * a.n_heads + kv_head * a.heads_per_kv + head;
  };
  const auto* const q = static_cast<const unsigned short*>(a.q);
  for (int i = threadIdx.x; i < kMostHeads * kD; i += kThreads) {
    const int column = i / kD, d = i % kD;
    float x = 0;
    if (column < columns && d < head_dim)
      x = half_from_bits(q[row_of(column) * head_dim + d], a.q_is_bf16);
    s_q[column][d] = __float2half_rn(x);
  }
  for (int i = threadIdx.x; i < kD / 16; i += kThreads) s_zeros[i] = uint4{};
  __syncthreads();

  Tile tile(s_q[lane / 4], ring.row_bytes(), a.scale_log2, a.cap_log2);
  const auto last_of = [&](int column) {
    return column < columns ? a.pos + token_of(column) : a.pos;
  };
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int last = last_of(lane % 4 * 2 + i);
    tile.see(i, last - a.window + 1, last);
  }
  for (int i = 0; i < ring.n_tiles(); ++i) {
    const TileRows keys = ring.take(s_zeros);
    float scales[Tile::kUnits];
    ring.load_scales(scales);
    tile.take_keys(keys, scales, reinterpret_cast<const float*>(s_zeros));
    ring.refill();
    tile.take_values(ring.take(s_zeros));
    ring.refill();
  }
  // Reuses the memory of the warp's slots: no copy into them is left.
  float* const s_sums = reinterpret_cast<float*>(s_slots);
  constexpr int kWarpFloats = Ring::kWarpBytes / int{sizeof(float)};
  static_assert(kWarpFloats >= kMostHeads * kD);
  tile.store(s_state[warp], s_sums + warp * kWarpFloats, columns);
  __syncthreads();

  const BlockParts parts{.counter = a.counters + blockIdx.x,
                         .states = a.states,
                         .sums = a.sums,
                         .first = int64_t{blockIdx.x} * gridDim.y * kMostHeads,
                         .sum_dim = a.sum_dim,
                         .n_splits = int(gridDim.y),
                         .split = int(blockIdx.y)};
  merge_block<kD, kWarps>(parts, s_state, s_sums, kWarpFloats, columns, head_dim, shared.is_last,
                          [&](Merged whole, int column, int d) {
                            const int head = int(row_of(column)) % a.n_heads;
                            whole.add_sink(sink_log2(a.sinks, head));
                            whole.store(a.out, row_of(column) * head_dim + d, head_dim - d,
                                        a.out_is_bf16);
                          });
}

// Most blocks of a grid whose positions are split: two on each SM, as in decode_splits.
int64_t most_blocks() { return 2 * card_attribute(cudaDevAttrMultiProcessorCount); }

// Byte offsets in the workspace, for up to n_blocks blocks of a grid.
struct Workspace {
  int64_t sum_dim, states_at, sums_at, n_bytes;
  Workspace(int64_t n_blocks, int64_t head_dim) {
    sum_dim = align_up(head_dim, 4);
    states_at = align_up(n_blocks * int64_t{sizeof(unsigned)}, 256);
    sums_at = states_at + align_up(n_blocks * kMostHeads * int64_t{sizeof(float2)}, 256);
    n_bytes = sums_at + n_blocks * kMostHeads * sum_dim * int64_t{sizeof(float)};
  }
};

}  // namespace

int64_t decode_queries_workspace(int64_t head_dim) {
  return Workspace(most_blocks(), head_dim).n_bytes;
}

void decode_queries(cudaStream_t stream, Tensor out, Tensor q, const KvLayer& cache,
                    const CachePlace& place, float scale, int64_t window, void* workspace,
                    float softcap, Tensor sinks) {
  const int64_t pos = place.pos;
  // Least positions of a split: fewer would cost more to merge than they take to read.
  constexpr int64_t kLeastPositions = 128;
  const int64_t n_tokens = q.shape[0], n_heads = q.shape[1], head_dim = cache.head_dim;
  const int64_t heads_per_kv = n_heads / cache.n_kv_heads;
  const int64_t blocks_per_kv = ceil_div(n_tokens * heads_per_kv, kMostHeads);
  const int64_t groups = cache.n_kv_heads * blocks_per_kv;
  MINFER_CHECK(cache.dtype == DType::U8 && (pos + n_tokens) * head_dim < int64_t{1} << 30,
               "attention: a cache of ", cache.dtype, ", ", pos + n_tokens, " positions of ",
               head_dim);

  const Workspace layout(most_blocks(), head_dim);
  std::byte* const memory = static_cast<std::byte*>(workspace);
  const auto run = [&]<int kD, bool kAligned>() {
    constexpr int64_t kRows = DecodeTile<kD, true>::kRows;
    const int64_t most_splits = std::max<int64_t>(most_blocks() / groups, 1);
    const int64_t first_seen =
        window > 0 ? std::max<int64_t>(0, pos + 1 - window) / kRows * kRows : 0;
    const int64_t n_seen = pos + 1 - first_seen;
    const int64_t even = std::max(kLeastPositions, ceil_div(n_seen, most_splits));
    const int64_t per_split = align_up(even, kRows), n_splits = ceil_div(n_seen, per_split);
    const QueriesArgs args{
        .out = out.data,
        .q = q.data,
        .cache = cache_of(cache, place.pages),
        .counters = reinterpret_cast<unsigned*>(memory),
        .states = reinterpret_cast<float2*>(memory + layout.states_at),
        .sums = reinterpret_cast<float*>(memory + layout.sums_at),
        .sum_dim = narrow<int>(layout.sum_dim),
        .n_tokens = narrow<int>(n_tokens),
        .n_heads = narrow<int>(n_heads),
        .heads_per_kv = narrow<int>(heads_per_kv),
        .blocks_per_kv = narrow<int>(blocks_per_kv),
        .pos = narrow<int>(pos),
        .positions_per_split = narrow<int>(per_split),
        .first_seen = narrow<int>(first_seen),
        .window = window > 0 ? narrow<int>(window) : kNoWindow,
        .q_is_bf16 = q.dtype == DType::BF16,
        .out_is_bf16 = out.dtype == DType::BF16,
        .scale_log2 = scale * kLog2E,
        .cap_log2 = SoftCap::of(softcap, kLog2E),
        .sinks = data_of<const float>(sinks),
    };
    if (n_splits > 1) {
      MINFER_CUDA_CHECK(cudaMemsetAsync(memory, 0, static_cast<size_t>(layout.states_at), stream));
    }
    const int n_bytes = ring_bytes(kernels_are_of_sm90());
    const auto kernel = decode_queries_kernel<kD, kAligned>;
    MINFER_CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, n_bytes));
    launch(kernel, dim3(narrow<unsigned>(groups), narrow<unsigned>(n_splits)),
           32 * decode_warps(kD), size_t(n_bytes), stream, args);
  };
  const bool is_aligned = head_dim % 16 == 0 && aligned16(cache.keys) && aligned16(cache.values);
  if (!is_aligned) return run.template operator()<256, false>();
  if (head_dim <= 128) return run.template operator()<128, true>();
  run.template operator()<256, true>();
}

}  // namespace minfer::cuda::attention
