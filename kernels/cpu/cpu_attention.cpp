// Attention of the CPU backend: how it is cut into pieces.

#include <algorithm>

#include "kernels/cpu/cpu_backend.h"

namespace minfer::cpu {
namespace {

float* f32_or_null(const DeviceTensor& x) { return x ? x.view().as<float>() : nullptr; }

}  // namespace

void CpuBackend::kv_append(KvLayer& cache, Tensor k, Tensor v, int64_t pos) {
  const int64_t n_tokens = k.shape[0];
  const Shape shape{n_tokens, cache.n_kv_heads, cache.head_dim};
  MINFER_CHECK(k.shape == shape && v.shape == shape && pos >= 0 && pos + n_tokens <= cache.capacity,
               "kv_append: k ", k.shape, ", v ", v.shape, ", position ", pos, " of ",
               cache.capacity);
  const KvAppend whole{.keys = cache.keys.view().data,
                       .values = cache.values.view().data,
                       .key_scales = f32_or_null(cache.key_scales),
                       .value_scales = f32_or_null(cache.value_scales),
                       .scale_stride = n_panels(cache.capacity) * kPanel,
                       .k = k.as<const float>(),
                       .v = v.as<const float>(),
                       .n_kv_heads = cache.n_kv_heads,
                       .head_dim = cache.head_dim,
                       .capacity = cache.capacity,
                       .pos = pos};
  const auto append = cache.dtype == DType::U8    ? kernels_.kv_append_u8
                      : cache.dtype == DType::F16 ? kernels_.kv_append_f16
                                                  : kernels_.kv_append_f32;
  for_ranges(n_tokens, 2 * cache.n_kv_heads * cache.head_dim,
             [&](int64_t begin, int64_t end) { append(whole, begin, end); });
}

void CpuBackend::attention(const AttentionArgs& args) {
  const auto& [out, q, cache, pos, scale, window] = args;
  const int64_t n_tokens = q.shape[0], n_heads = q.shape[1], head_dim = cache.head_dim;
  MINFER_CHECK(q.shape == Shape({n_tokens, n_heads, head_dim}) && out.shape == q.shape &&
                   n_heads % cache.n_kv_heads == 0 && window >= 0 && pos >= 0 &&
                   pos + n_tokens <= cache.capacity,
               "attention: q ", q.shape, ", out ", out.shape, ", ", cache.n_kv_heads,
               " key/value heads of ", head_dim, ", position ", pos, " of ", cache.capacity);
  const int64_t n_group = n_heads / cache.n_kv_heads, rows = n_tokens * n_group;
  const AttentionPiece whole{.out = out.as<float>(),
                             .q = q.as<const float>(),
                             .keys = cache.keys.view().data,
                             .values = cache.values.view().data,
                             .key_scales = f32_or_null(cache.key_scales),
                             .value_scales = f32_or_null(cache.value_scales),
                             .n_heads = n_heads,
                             .n_group = n_group,
                             .head_dim = head_dim,
                             .capacity = cache.capacity,
                             .row_begin = 0,
                             .row_end = rows,
                             .pos = pos,
                             .window = window,
                             .scale = scale,
                             .scratch = nullptr};
  const auto run = cache.dtype == DType::U8    ? kernels_.attention_u8
                   : cache.dtype == DType::F16 ? kernels_.attention_f16
                                               : kernels_.attention_f32;
  const int64_t element_bytes = info(cache.dtype).block_bytes;
  const int64_t key_bytes = panel_elements(cache.capacity, head_dim) * element_bytes;
  const int64_t value_bytes = panel_elements(head_dim, cache.capacity) * element_bytes;

  int64_t step = std::min(kAttentionRows, rows);
  while (step > 1 && cache.n_kv_heads * ceil_div(rows, step) < 2 * pool_.n_threads()) {
    step = ceil_div(step, 2);
  }
  const int64_t n_seen = window == 0 ? pos + n_tokens : std::min(window, pos + n_tokens);
  const double products = 2 * double(q.n_elements()) * double(n_seen);
  for_pieces(cache.n_kv_heads * ceil_div(rows, step), products, [&](int64_t i, int thread) {
    const int64_t head = i % cache.n_kv_heads, block = i / cache.n_kv_heads;
    AttentionPiece piece = whole;
    piece.out += head * n_group * head_dim;
    piece.q += head * n_group * head_dim;
    piece.keys = static_cast<const char*>(piece.keys) + head * key_bytes;
    piece.values = static_cast<const char*>(piece.values) + head * value_bytes;
    if (piece.key_scales != nullptr) {
      const int64_t offset = head * n_panels(cache.capacity) * kPanel;
      piece.key_scales += offset;
      piece.value_scales += offset;
    }
    piece.row_end = rows - block * step;  // the rows that see most positions first
    piece.row_begin = std::max<int64_t>(0, piece.row_end - step);
    piece.scratch = scratch(thread);
    run(piece);
  });
}

}  // namespace minfer::cpu
