#include "kernels/cuda/attention/prefill.h"

#include <algorithm>

namespace minfer::cuda {
namespace {

bool is_aligned16(const Tensor& x) { return reinterpret_cast<uintptr_t>(x.data) % 16 == 0; }

}  // namespace

int64_t attention_prefill_workspace(DType dtype, int64_t n_kv_heads, int64_t head_dim,
                                    int64_t n_pages) {
  if (dtype != DType::U8) return 0;
  const int64_t of_queries = attention::decode_queries_workspace(head_dim);
  if (!attention::has_prefill_wgmma(head_dim)) return of_queries;
  const Shape as_halves{n_pages, n_kv_heads, kPagePositions, head_dim};
  return std::max(of_queries, 2 * bytes_of(DType::F16, as_halves));
}

void attention_prefill(cudaStream_t stream, Tensor out, Tensor q, const KvLayer& cache,
                       const CachePlace& place, float scale, int64_t window, void* workspace,
                       float softcap, Tensor sinks) {
  MINFER_CHECK(q.shape.rank == 3 && out.shape == q.shape && q.shape[2] == cache.head_dim,
               "attention: q ", q.shape, ", out ", out.shape, ", cache of head_dim ",
               cache.head_dim);
  const int64_t n_tokens = q.shape[0], n_heads = q.shape[1];
  MINFER_CHECK(cache.n_kv_heads > 0 && n_heads % cache.n_kv_heads == 0, "attention: ", n_heads,
               " query heads for ", cache.n_kv_heads);
  MINFER_CHECK(
      place.pages != nullptr && place.pos >= 0 && place.pos + n_tokens <= place.max_positions(),
      "attention: positions ", place.pos, " to ", place.pos + n_tokens, " of ", place.n_pages,
      " pages");
  const auto is_half = [](DType dtype) { return dtype == DType::F16 || dtype == DType::BF16; };
  MINFER_CHECK(is_half(q.dtype) && is_half(out.dtype), "attention: q ", q.dtype, ", out ",
               out.dtype);
  MINFER_CHECK(cache.dtype == DType::F16 || cache.dtype == DType::U8, "attention: a cache of ",
               cache.dtype);
  MINFER_CHECK(cache.head_dim > 0 && cache.head_dim <= attention::kMaxHeadDim,
               "attention: head_dim ", cache.head_dim, " is past ", attention::kMaxHeadDim);
  MINFER_CHECK(scale > 0 && window >= 0 && softcap >= 0, "attention: a scale of ", scale,
               ", a window of ", window, ", a soft cap of ", softcap);
  MINFER_CHECK(!sinks || (sinks.dtype == DType::F32 && sinks.shape == Shape{n_heads}),
               "attention: sinks ", sinks.dtype, " ", sinks.shape, " of ", n_heads, " heads");
  if (n_tokens == 0) return;
  const int64_t kv_len = place.pos + n_tokens;
  const int64_t seen_from = window > 0 ? std::max<int64_t>(0, place.pos + 1 - window) : 0;
  const int64_t first_page = seen_from / kPagePositions;
  Tensor keys = cache.keys, values = cache.values;
  const bool has_memory = cache.dtype == DType::U8 && workspace != nullptr;
  if (has_memory && n_tokens <= kMaxGemvTokens)
    return attention::decode_queries(stream, out, q, cache, place, scale, window, workspace,
                                     softcap, sinks);
  const bool from_halves = has_memory && attention::has_prefill_wgmma(cache.head_dim);
  if (from_halves) {
    keys = {workspace,
            DType::F16,
            {pages_for(kv_len) - first_page, cache.n_kv_heads, kPagePositions, cache.head_dim}};
    values = {static_cast<char*>(workspace) + keys.n_bytes(), DType::F16, keys.shape};
  }
  const bool all_aligned =
      is_aligned16(out) && is_aligned16(q) && is_aligned16(keys) && is_aligned16(values);
  if (keys.dtype != DType::F16 || !all_aligned || !attention::has_prefill_wgmma(cache.head_dim)) {
    return attention::prefill_mma(stream, out, q, cache, place, scale, window, softcap, sinks);
  }
  if (from_halves) attention::dequantize_kv(stream, keys, values, cache, place, first_page, kv_len);
  attention::prefill_wgmma(stream, out, q, keys, values, from_halves ? nullptr : place.pages,
                           place.pos, scale, window, softcap, sinks);
}

}  // namespace minfer::cuda
