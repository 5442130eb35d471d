#include <algorithm>

#include "kernels/cuda/attention/decode_kernel.cuh"
#include "kernels/cuda/attention/prefill.h"
#include "kernels/cuda/launch.h"

namespace minfer::cuda {
namespace attention {
namespace {

constexpr int kMostSplits = 64;

// Byte offsets in the workspace, and what they follow from.
struct Layout {
  int64_t blocks_per_kv, groups, sum_dim;  // groups of columns that a sequence has
  int64_t states_at, sums_at, n_bytes;
};

// Blocks of the columns of a key/value head: query heads of each row of a sequence.
int64_t blocks_of_columns(int64_t n_heads, int64_t n_kv_heads, int64_t rows_of_sequence) {
  return ceil_div(rows_of_sequence * (n_heads / n_kv_heads), kMostHeads);
}

Layout layout_of(int64_t n, int64_t n_heads, int64_t n_kv_heads, int64_t head_dim,
                 const DecodeSplits& splits, int64_t rows_of_sequence) {
  Layout l{};
  l.blocks_per_kv = blocks_of_columns(n_heads, n_kv_heads, rows_of_sequence);
  l.groups = n_kv_heads * l.blocks_per_kv;
  l.sum_dim = align_up(head_dim, 4);
  const int64_t n_parts = splits.n > 1 ? n * l.groups * splits.n * kMostHeads : 0;
  // There is room for the counters of any number of rows, of one sequence or of several, so that
  // nothing else is ever stored there: counters must be zero between steps.
  const int64_t groups_of_row = n_kv_heads * blocks_of_columns(n_heads, n_kv_heads, 1);
  l.states_at = align_up(kMaxGemvTokens * groups_of_row * int64_t{sizeof(unsigned)}, 256);
  l.sums_at = l.states_at + align_up(n_parts * int64_t{sizeof(float2)}, 256);
  l.n_bytes = l.sums_at + n_parts * l.sum_dim * int64_t{sizeof(float)};
  return l;
}

bool rows_aligned(const KvLayer& cache) {
  const auto aligned = [](const Tensor& x) {
    return reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
  };
  return cache.head_dim * (cache.dtype == DType::U8 ? 1 : 2) % 16 == 0 && aligned(cache.keys) &&
         aligned(cache.values);
}

}  // namespace

DecodeSplits decode_splits(int64_t n, int64_t n_heads, int64_t n_kv_heads, int64_t max_seq_len,
                           int64_t rows_of_sequence) {
  int device = 0, n_sms = 0;
  MINFER_CUDA_CHECK(cudaGetDevice(&device));
  MINFER_CUDA_CHECK(cudaDeviceGetAttribute(&n_sms, cudaDevAttrMultiProcessorCount, device));
  DecodeSplits s;
  if (max_seq_len <= s.most_alone) return s;
  const int64_t groups = n * n_kv_heads * blocks_of_columns(n_heads, n_kv_heads, rows_of_sequence);
  const int64_t most = std::min<int64_t>(kMostSplits, ceil_div(max_seq_len, s.least));
  // Two blocks on each SM. The ring of one block already keeps enough copies in flight for the
  // memory, but SMs do not get the same bandwidth, and with smaller splits a slow SM has less left
  // to do. Measured, 32 heads of 128 with 4, 8, 16 and 24 splits: 20.7, 18.2, 21.5 and 26.0 us at
  // 4096 positions, 135, 120, 121 and 123 us at 32768.
  s.n = int(std::clamp<int64_t>(2 * n_sms / groups, 1, most));
  return s;
}

int64_t decode_workspace(int64_t n, int64_t n_heads, int64_t n_kv_heads, int64_t head_dim,
                         const DecodeSplits& splits, int64_t rows_of_sequence) {
  return layout_of(n, n_heads, n_kv_heads, head_dim, splits, rows_of_sequence).n_bytes;
}

void decode(cudaStream_t stream, const AttentionDecode& a, const DecodeSplits& splits) {
  MINFER_CHECK(
      a.cache != nullptr && a.pages != nullptr && a.pos != nullptr && a.workspace != nullptr,
      "attention: no cache, pages, position or workspace");
  const KvLayer& cache = *a.cache;
  const int64_t n = a.q.shape[0], n_heads = a.q.shape[1];
  const int64_t n_kv_heads = cache.n_kv_heads, head_dim = cache.head_dim;
  const Shape kv_shape{n, n_kv_heads, head_dim};
  MINFER_CHECK(n_kv_heads > 0 && n_heads > 0 && n_heads % n_kv_heads == 0 && n <= kMaxGemvTokens &&
                   a.q.shape == (Shape{n, n_heads, head_dim}) && a.out.shape == a.q.shape &&
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
  for (const Tensor& norm : {a.q_norm, a.k_norm}) {
    MINFER_CHECK(!norm || (norm.dtype == dtype && norm.shape == Shape{head_dim} && a.norm_eps > 0),
                 "attention: norms of ", norm.dtype, ' ', norm.shape, " and ", a.norm_eps);
  }
  MINFER_CHECK(a.scale > 0 && a.window >= 0, "attention: a scale of ", a.scale, ", a window of ",
               a.window);
  MINFER_CHECK(a.rows_of_sequence >= 1 && n % a.rows_of_sequence == 0, "attention: ", n,
               " rows, of each sequence ", a.rows_of_sequence);
  MINFER_CHECK(!a.sinks || (a.sinks.dtype == DType::F32 && a.sinks.shape == Shape{n_heads}),
               "attention: sinks ", a.sinks.dtype, " ", a.sinks.shape, " of ", n_heads, " heads");
  MINFER_CHECK(a.max_seq_len * head_dim < int64_t{1} << 30, "attention: ", a.max_seq_len,
               " positions of ", head_dim);

  MINFER_CHECK(splits.n > 0 && splits.least > 0, "attention: ", splits.n, " splits of ",
               splits.least, " positions");

  const int64_t n_sequences = n / a.rows_of_sequence;
  const Layout layout =
      layout_of(n_sequences, n_heads, n_kv_heads, head_dim, splits, a.rows_of_sequence);
  std::byte* const workspace = static_cast<std::byte*>(a.workspace);
  const DecodeArgs args{
      .out = a.out.data,
      .q = a.q.data,
      .k = a.k.data,
      .v = a.v.data,
      .q_norm = a.q_norm.data,
      .k_norm = a.k_norm.data,
      .norm_eps = a.norm_eps,
      .rope = data_of<const float2>(a.rope),
      .cache = cache_of(cache, a.pages),
      .pos = a.pos,
      .counters = reinterpret_cast<unsigned*>(workspace),
      .states = reinterpret_cast<float2*>(workspace + layout.states_at),
      .sums = reinterpret_cast<float*>(workspace + layout.sums_at),
      .sum_dim = narrow<int>(layout.sum_dim),
      .n_pairs = narrow<int>(a.rope ? a.rope.shape[1] : 0),
      .n_heads = narrow<int>(n_heads),
      .heads_per_kv = narrow<int>(n_heads / n_kv_heads),
      .blocks_per_kv = narrow<int>(layout.blocks_per_kv),
      .by_heads_per_kv = Divisor(narrow<int>(n_heads / n_kv_heads)),
      .by_blocks_per_kv = Divisor(narrow<int>(layout.blocks_per_kv)),
      .rows_of_sequence = narrow<int>(a.rows_of_sequence),
      .table_pages = narrow<int>(pages_for(a.max_seq_len)),
      .window = a.window > 0 ? narrow<int>(a.window) : kNoWindow,
      .splits = splits,
      .is_bf16 = dtype == DType::BF16,
      .scale_log2 = a.scale * 1.44269504088896341f,
      .cap_log2 = SoftCap::of(a.softcap, 1.44269504088896341f),
      .sinks = data_of<const float>(a.sinks),
  };
  const dim3 grid(narrow<unsigned>(layout.groups), unsigned(splits.n),
                  narrow<unsigned>(n_sequences));
  const auto run_kind = [&]<int kD, bool kU8, bool kAligned, bool kMasked>() {
    const int n_bytes = ring_bytes(kernels_are_of_sm90(), kMasked);
    // Rows that are not aligned have no plain kernel.
    const bool is_plain =
        kAligned && head_dim == kD && args.n_pairs == kD / 2 && !a.q_norm && !a.k_norm;
    const auto kernel = is_plain ? decode_kernel<kD, kU8, kAligned, kMasked, kAligned>
                                 : decode_kernel<kD, kU8, kAligned, kMasked, false>;
    MINFER_CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, n_bytes));
    // The carve-out of the GEMVs before and after it, so that an SM can run blocks of both at once.
    MINFER_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                           cudaSharedmemCarveoutMaxShared));
    launch(kernel, grid, 32 * decode_warps(kD), size_t(n_bytes), stream, args);
  };
  const auto run = [&]<int kD, bool kU8, bool kAligned>() {
    const bool is_masked = a.window > 0 || a.rows_of_sequence > 1;
    if (is_masked) return run_kind.template operator()<kD, kU8, kAligned, true>();
    run_kind.template operator()<kD, kU8, kAligned, false>();
  };
  const auto run_size = [&]<bool kU8>() {
    if (!rows_aligned(cache)) return run.template operator()<256, kU8, false>();
    if constexpr (!kU8) {
      if (head_dim <= 64) return run.template operator()<64, kU8, true>();
    }
    if (head_dim <= 128) return run.template operator()<128, kU8, true>();
    run.template operator()<256, kU8, true>();
  };
  if (cache.dtype == DType::U8) return run_size.template operator()<true>();
  run_size.template operator()<false>();
}

}  // namespace attention

int64_t attention_decode_workspace(int64_t n, int64_t n_heads, int64_t n_kv_heads, int64_t head_dim,
                                   int64_t max_seq_len) {
  // Fewer rows have more splits each, and may need more memory.
  int64_t most = 0;
  const auto add = [&](int64_t n_sequences, int64_t n_rows) {
    const auto splits =
        attention::decode_splits(n_sequences, n_heads, n_kv_heads, max_seq_len, n_rows);
    most = std::max(most, attention::decode_workspace(n_sequences, n_heads, n_kv_heads, head_dim,
                                                      splits, n_rows));
  };
  for (int64_t i = 1; i <= n; ++i) {
    add(i, 1);
    add(1, i);
  }
  return most;
}

void attention_decode(cudaStream_t stream, const AttentionDecode& a) {
  MINFER_CHECK(a.cache != nullptr && a.cache->n_kv_heads > 0, "attention: no cache");
  MINFER_CHECK(a.rows_of_sequence >= 1, "attention: ", a.rows_of_sequence, " rows of a sequence");
  const int64_t n_seen =
      a.window > 0 ? std::min(a.window + a.rows_of_sequence - 1, a.max_seq_len) : a.max_seq_len;
  attention::decode(stream, a,
                    attention::decode_splits(a.q.shape[0] / a.rows_of_sequence, a.q.shape[1],
                                             a.cache->n_kv_heads, n_seen, a.rows_of_sequence));
}

}  // namespace minfer::cuda
