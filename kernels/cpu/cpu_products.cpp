// Matmul and attention of the CPU backend: how they are cut into pieces.

#include <algorithm>

#include "kernels/cpu/cpu_backend.h"

namespace minfer::cpu {
namespace {

// One piece of a matvec: some ten microseconds of streaming.
constexpr int64_t kMatvecPieceBytes = 256 << 10;

}  // namespace

// ---- matmul ------------------------------------------------------------------------------------

void CpuBackend::matmul(Tensor out, Tensor x, const Matrix& w, bool accumulate) {
  const int64_t n_tokens = n_rows(x);
  MINFER_CHECK(
      x.shape.last() == w.in_dim && out.shape.last() == w.out_dim && n_rows(out) == n_tokens,
      "matmul: x ", x.shape, ", w [", w.out_dim, ", ", w.in_dim, "], out ", out.shape);
  const MatmulPiece whole{.out = out.as<float>(),
                          .x = x.as<const float>(),
                          .w = w.storage.view().data,
                          .in_dim = w.in_dim,
                          .out_dim = w.out_dim,
                          .token_begin = 0,
                          .token_end = n_tokens,
                          .panel_begin = 0,
                          .panel_end = n_panels(w.out_dim),
                          .accumulate = accumulate,
                          .scratch = nullptr};
  const auto run = w.dtype == DType::F32   ? kernels_.matmul_f32
                   : w.dtype == DType::F16 ? kernels_.matmul_f16
                                           : kernels_.matmul_bf16;

  // With few tokens the weights are streamed: small pieces of panels. With many, pieces are as
  // large as the caches allow, but not so large that one thread waits for another's last piece.
  const int64_t min_pieces = pool_.n_threads() == 1 ? 1 : 4 * pool_.n_threads();
  int64_t step_tokens = std::max<int64_t>(n_tokens, 1), step_panels = kMaxMatmulPanels;
  if (n_tokens < kManyTokens) {
    const int64_t panel_bytes = w.n_bytes / whole.panel_end;
    step_panels = std::min({kMaxMatmulPanels, ceil_div(kMatvecPieceBytes, panel_bytes),
                            ceil_div(whole.panel_end, min_pieces)});
    step_panels = align_up(step_panels, kMaxTilePanels);
  } else {
    step_tokens = ceil_div(n_tokens, ceil_div(n_tokens, kMaxMatmulTokens));
    const int64_t token_pieces = ceil_div(n_tokens, step_tokens);
    while (step_panels > kMaxTilePanels &&
           token_pieces * ceil_div(whole.panel_end, step_panels) < min_pieces) {
      step_panels /= 2;
    }
  }
  const int64_t panel_pieces = ceil_div(whole.panel_end, step_panels);
  const int64_t n_pieces = ceil_div(n_tokens, step_tokens) * panel_pieces;
  const double products = double(n_tokens) * double(w.in_dim) * double(w.out_dim);
  for_pieces(n_pieces, products, [&](int64_t i, int thread) {
    MatmulPiece piece = whole;
    piece.token_begin = i / panel_pieces * step_tokens;
    piece.token_end = std::min(n_tokens, piece.token_begin + step_tokens);
    piece.panel_begin = i % panel_pieces * step_panels;
    piece.panel_end = std::min(whole.panel_end, piece.panel_begin + step_panels);
    piece.scratch = scratch(thread);
    run(piece);
  });
}

// ---- attention ---------------------------------------------------------------------------------

void CpuBackend::kv_append(KvLayer& cache, Tensor k, Tensor v, int64_t pos) {
  const int64_t n_tokens = k.shape[0];
  const Shape shape{n_tokens, cache.n_kv_heads, cache.head_dim};
  MINFER_CHECK(k.shape == shape && v.shape == shape && pos >= 0 && pos + n_tokens <= cache.capacity,
               "kv_append: k ", k.shape, ", v ", v.shape, ", position ", pos, " of ",
               cache.capacity);
  const KvAppend whole{.keys = cache.keys.view().data,
                       .values = cache.values.view().data,
                       .k = k.as<const float>(),
                       .v = v.as<const float>(),
                       .n_kv_heads = cache.n_kv_heads,
                       .head_dim = cache.head_dim,
                       .capacity = cache.capacity,
                       .pos = pos};
  const auto append = cache.dtype == DType::F16 ? kernels_.kv_append_f16 : kernels_.kv_append_f32;
  for_ranges(n_tokens, 2 * cache.n_kv_heads * cache.head_dim,
             [&](int64_t begin, int64_t end) { append(whole, begin, end); });
}

void CpuBackend::attention(Tensor out, Tensor q, const KvLayer& cache, int64_t pos, float scale) {
  const int64_t n_tokens = q.shape[0], n_heads = q.shape[1], head_dim = cache.head_dim;
  MINFER_CHECK(q.shape == Shape({n_tokens, n_heads, head_dim}) && out.shape == q.shape &&
                   n_heads % cache.n_kv_heads == 0 && pos >= 0 && pos + n_tokens <= cache.capacity,
               "attention: q ", q.shape, ", out ", out.shape, ", ", cache.n_kv_heads,
               " key/value heads of ", head_dim, ", position ", pos, " of ", cache.capacity);
  const int64_t n_group = n_heads / cache.n_kv_heads, rows = n_tokens * n_group;
  const AttentionPiece whole{.out = out.as<float>(),
                             .q = q.as<const float>(),
                             .keys = cache.keys.view().data,
                             .values = cache.values.view().data,
                             .n_heads = n_heads,
                             .n_group = n_group,
                             .head_dim = head_dim,
                             .capacity = cache.capacity,
                             .row_begin = 0,
                             .row_end = rows,
                             .pos = pos,
                             .scale = scale,
                             .scratch = nullptr};
  const auto run = cache.dtype == DType::F16 ? kernels_.attention_f16 : kernels_.attention_f32;
  const int64_t element_bytes = info(cache.dtype).block_bytes;
  const int64_t key_bytes = panel_elements(cache.capacity, head_dim) * element_bytes;
  const int64_t value_bytes = panel_elements(head_dim, cache.capacity) * element_bytes;

  int64_t step = std::min(kAttentionRows, rows);
  while (step > 1 && cache.n_kv_heads * ceil_div(rows, step) < 2 * pool_.n_threads()) {
    step = ceil_div(step, 2);
  }
  const double products = 2 * double(q.n_elements()) * double(pos + n_tokens);
  for_pieces(cache.n_kv_heads * ceil_div(rows, step), products, [&](int64_t i, int thread) {
    const int64_t head = i % cache.n_kv_heads, block = i / cache.n_kv_heads;
    AttentionPiece piece = whole;
    piece.out += head * n_group * head_dim;
    piece.q += head * n_group * head_dim;
    piece.keys = static_cast<const char*>(piece.keys) + head * key_bytes;
    piece.values = static_cast<const char*>(piece.values) + head * value_bytes;
    piece.row_end = rows - block * step;  // the rows that see most positions first
    piece.row_begin = std::max<int64_t>(0, piece.row_end - step);
    piece.scratch = scratch(thread);
    run(piece);
  });
}

}  // namespace minfer::cpu
