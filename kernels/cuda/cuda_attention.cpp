// The operations of the CUDA backend that process a batch sequence by sequence: positions, the
// cache and attention.

#include <array>

#include "kernels/cuda/cuda_backend.h"

namespace minfer::cuda {
namespace {

// Calls f(rows of the sequence, index of its first row in the batch) for each sequence.
template <typename F>
void for_each_sequence(Batch batch, const F& f) {
  int64_t first = 0;
  for (const SequenceRows& rows : batch) {
    f(rows, first);
    first += rows.n_rows;
  }
}

}  // namespace

void CudaBackend::rope(Tensor x, Tensor cos_sin, Batch batch) {
  MINFER_CHECK(n_rows_of(batch) == x.shape[0], "rope: x ", x.shape, ", a batch of ",
               n_rows_of(batch));
  for_each_sequence(batch, [&](const SequenceRows& rows, int64_t first) {
    const Tensor of_rows = x.rows(first, rows.n_rows);
    cuda::rope(stream_.get(), of_rows, of_rows, cos_sin, rows.pos);
  });
}

std::span<const CachePlace> CudaBackend::places_of(Batch batch) {
  std::vector<int32_t> tables;
  for (const SequenceRows& rows : batch) {
    tables.insert(tables.end(), rows.pages.begin(), rows.pages.end());
  }
  const int64_t n = std::ssize(tables);
  int32_t* to = static_cast<int32_t*>(scratch(tables_, DType::F32, {n}).data);  // 4 bytes each
  if (tables != host_tables_ || to != table_memory_) {
    uploader_.copy(to, tables.data(), n * int64_t{sizeof(int32_t)});
    host_tables_ = std::move(tables);
    table_memory_ = to;
  }
  places_.clear();
  for (const SequenceRows& rows : batch) {
    places_.push_back({to, std::ssize(rows.pages), rows.pos});
    to += rows.pages.size();
  }
  return places_;
}

void CudaBackend::kv_append(KvLayer& cache, Tensor k, Tensor v, Batch batch) {
  check_batch("kv_append", batch, k.shape[0], cache, 1);
  auto place = places_of(batch).begin();
  for_each_sequence(batch, [&](const SequenceRows& rows, int64_t first) {
    const int64_t n = rows.n_rows;
    cuda::kv_append(stream_.get(), cache, *place++, k.rows(first, n), v.rows(first, n));
  });
}

void CudaBackend::rope_append(KvLayer& cache, Tensor q, Tensor k, Tensor v, Tensor cos_sin,
                              Batch batch) {
  if (!cos_sin) return kv_append(cache, k, v, batch);
  check_batch("rope_append", batch, q.shape[0], cache, 1);
  auto place = places_of(batch).begin();
  for_each_sequence(batch, [&](const SequenceRows& rows, int64_t first) {
    const int64_t n = rows.n_rows;
    cuda::rope_append(stream_.get(), cache, *place++, q.rows(first, n), k.rows(first, n),
                      v.rows(first, n), cos_sin);
  });
}

void CudaBackend::qkv_append(const QkvArgs& a, KvLayer& cache, Tensor cos_sin, Batch batch) {
  const Linear* const layers[] = {&a.wq, &a.wk, &a.wv};
  const Tensor outs[] = {a.q, a.k, a.v};
  const Matrix* const matrices[] = {&a.wq.weight, &a.wk.weight, &a.wv.weight};
  std::array<GemmPart, 3> parts;
  for (size_t i = 0; i < 3; ++i) {
    const Matrix& w = *matrices[i];
    parts[i] = {{nullptr, type_, {w.out_dim, w.in_dim}},
                outs[i].reshaped({a.x.shape[0], w.out_dim}),
                layers[i]->bias};
  }
  if (batch.size() != 1 || cublas_ || a.x.shape[0] <= kMaxGemvTokens || are_of_codes(matrices) ||
      !gemm_appends(a.x, parts, cache, batch.front().pos, cos_sin, a.norm.kind)) {
    return Backend::qkv_append(a, cache, cos_sin, batch);
  }
  check_batch("qkv_append", batch, a.x.shape[0], cache, 1);
  const std::vector<Tensor> weights = float_weights(matrices);
  for (size_t i = 0; i < 3; ++i) parts[i].w = weights[i];
  gemm_append(stream_.get(), cache, places_of(batch).front(), a.x, parts, cos_sin, a.norm);
}

int64_t CudaBackend::attention_workspace_bytes(DType dtype, int64_t n_kv_heads, int64_t head_dim,
                                               int64_t n_pages) const {
  return attention_prefill_workspace(dtype, n_kv_heads, head_dim, n_pages);
}

void* CudaBackend::prefill_workspace(const KvLayer& cache) {
  const int64_t n_bytes =
      attention_prefill_workspace(cache.dtype, cache.n_kv_heads, cache.head_dim, cache.n_pages);
  return n_bytes > 0 ? scratch(kv_halves_, DType::U8, {n_bytes}).data : nullptr;
}

void CudaBackend::attention(const AttentionArgs& a) {
  check_batch("attention", a.batch, a.q.shape[0], a.cache, a.window);
  void* const workspace = prefill_workspace(a.cache);
  auto place = places_of(a.batch).begin();
  for_each_sequence(a.batch, [&](const SequenceRows& rows, int64_t first) {
    const int64_t n = rows.n_rows;
    attention_prefill(stream_.get(), a.out.rows(first, n), a.q.rows(first, n), a.cache, *place++,
                      a.scale, a.window, workspace, a.softcap, a.sinks);
  });
}

}  // namespace minfer::cuda
