// Attention of the CPU backend: how it is cut into pieces.

#include <algorithm>

#include "kernels/cpu/cpu_backend.h"

namespace minfer::cpu {
namespace {

float* f32_or_null(const DeviceTensor& x) { return x ? x.view().as<float>() : nullptr; }

CachePages pages_of(const KvLayer& cache, const SequenceRows& rows) {
  return {.keys = cache.keys.view().data,
          .values = cache.values.view().data,
          .key_scales = f32_or_null(cache.key_scales),
          .value_scales = f32_or_null(cache.value_scales),
          .pages = rows.pages.data(),
          .n_kv_heads = cache.n_kv_heads,
          .head_dim = cache.head_dim};
}

}  // namespace

void CpuBackend::kv_append(KvLayer& cache, Tensor k, Tensor v, Batch batch) {
  const int64_t n_tokens = k.shape[0];
  const Shape shape{n_tokens, cache.n_kv_heads, cache.head_dim};
  MINFER_CHECK(k.shape == shape && v.shape == shape, "kv_append: k ", k.shape, ", v ", v.shape);
  check_batch("kv_append", batch, n_tokens, cache, 1);
  const auto append = cache.dtype == DType::U8    ? kernels_.kv_append_u8
                      : cache.dtype == DType::F16 ? kernels_.kv_append_f16
                                                  : kernels_.kv_append_f32;
  const int64_t row = cache.n_kv_heads * cache.head_dim;
  int64_t first = 0;
  for (const SequenceRows& rows : batch) {
    const KvAppend whole{.cache = pages_of(cache, rows),
                         .k = k.as<const float>() + first * row,
                         .v = v.as<const float>() + first * row,
                         .pos = rows.pos};
    for_ranges(rows.n_rows, 2 * row,
               [&](int64_t begin, int64_t end) { append(whole, begin, end); });
    first += rows.n_rows;
  }
}

void CpuBackend::attention(const AttentionArgs& args) {
  const auto& [out, q, cache, batch, scale, window, softcap, sinks] = args;
  const int64_t n_tokens = q.shape[0], n_heads = q.shape[1], head_dim = cache.head_dim;
  MINFER_CHECK(q.shape == Shape({n_tokens, n_heads, head_dim}) && out.shape == q.shape &&
                   n_heads % cache.n_kv_heads == 0 && window >= 0 && softcap >= 0 &&
                   (!sinks || sinks.shape == Shape{n_heads}),
               "attention: q ", q.shape, ", out ", out.shape, ", sinks ", sinks.shape, ", ",
               cache.n_kv_heads, " key/value heads of ", head_dim);
  check_batch("attention", batch, n_tokens, cache, window);
  int64_t first = 0;
  for (const SequenceRows& rows : batch) {
    AttentionArgs of_rows = args;
    of_rows.out = out.rows(first, rows.n_rows);
    of_rows.q = q.rows(first, rows.n_rows);
    attend(of_rows, rows);
    first += rows.n_rows;
  }
}

void CpuBackend::attend(const AttentionArgs& args, const SequenceRows& sequence) {
  const KvLayer& cache = args.cache;
  const int64_t n_heads = args.q.shape[1], head_dim = cache.head_dim, n_tokens = sequence.n_rows;
  const int64_t n_group = n_heads / cache.n_kv_heads, rows = n_tokens * n_group;
  const AttentionPiece whole{.out = args.out.as<float>(),
                             .q = args.q.as<const float>(),
                             .cache = pages_of(cache, sequence),
                             .kv_head = 0,
                             .n_heads = n_heads,
                             .n_group = n_group,
                             .head_dim = head_dim,
                             .row_begin = 0,
                             .row_end = rows,
                             .pos = sequence.pos,
                             .window = args.window,
                             .scale = args.scale,
                             .softcap = args.softcap,
                             .sinks = args.sinks ? args.sinks.as<const float>() : nullptr,
                             .scratch = nullptr};
  const auto run = cache.dtype == DType::U8    ? kernels_.attention_u8
                   : cache.dtype == DType::F16 ? kernels_.attention_f16
                                               : kernels_.attention_f32;

  int64_t step = std::min(kAttentionRows, rows);
  while (step > 1 && cache.n_kv_heads * ceil_div(rows, step) < 2 * pool_.n_threads()) {
    step = ceil_div(step, 2);
  }
  const int64_t n_seen = args.window == 0 ? sequence.end() : std::min(args.window, sequence.end());
  const double n_multiplies = 2 * double(args.q.n_elements()) * double(n_seen);
  for_pieces(cache.n_kv_heads * ceil_div(rows, step), n_multiplies, [&](int64_t i, int thread) {
    const int64_t head = i % cache.n_kv_heads, block = i / cache.n_kv_heads;
    AttentionPiece piece = whole;
    piece.out += head * n_group * head_dim;
    piece.q += head * n_group * head_dim;
    piece.kv_head = head;
    if (piece.sinks != nullptr) piece.sinks += head * n_group;
    piece.row_end = rows - block * step;  // the rows that see most positions first
    piece.row_begin = std::max<int64_t>(0, piece.row_end - step);
    piece.scratch = scratch(thread);
    run(piece);
  });
}

}  // namespace minfer::cpu
