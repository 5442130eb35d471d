#include "kernels/backend.h"

#include <algorithm>

#include "kernels/comm/communicator.h"
#include "kernels/comm/rank_group.h"
#include "kernels/decode_plan.h"

namespace minfer {

std::unique_ptr<DecodePlan> Backend::plan_decode(std::span<const DecodeModel>) { return nullptr; }
std::unique_ptr<RowsPlan> Backend::plan_rows(const DecodeModel&) { return nullptr; }

void check_batch(const char* operation, Batch batch, int64_t n_rows, const KvLayer& cache,
                 int64_t window) {
  MINFER_CHECK(n_rows_of(batch) == n_rows, operation, ": ", n_rows, " rows, a batch of ",
               n_rows_of(batch));
  for (const SequenceRows& rows : batch) {
    MINFER_CHECK(rows.pos >= 0 && rows.end() <= std::ssize(rows.pages) * kPagePositions, operation,
                 ": positions ", rows.pos, " to ", rows.end(), " of ", rows.pages.size(), " pages");
    const int64_t seen_from = window == 0 ? 0 : std::max<int64_t>(0, rows.pos + 1 - window);
    for (int64_t i = seen_from / kPagePositions; i < pages_for(rows.end()); ++i) {
      const int32_t page = rows.pages[static_cast<size_t>(i)];
      MINFER_CHECK(page >= 0 && page < cache.n_pages, operation, ": page ", page, " of ",
                   cache.n_pages);
    }
  }
}

void Backend::rope_append(KvLayer& cache, Tensor q, Tensor k, Tensor v, Tensor cos_sin,
                          Batch batch) {
  if (cos_sin) {
    rope(q, cos_sin, batch);
    rope(k, cos_sin, batch);
  }
  kv_append(cache, k, v, batch);
}

void Backend::qkv(const QkvArgs& a) {
  const auto rows = [](Tensor heads) {
    return heads.reshaped({heads.shape[0], heads.shape[1] * heads.shape[2]});
  };
  const Matmul calls[] = {
      {rows(a.q), a.wq.weight}, {rows(a.k), a.wk.weight}, {rows(a.v), a.wv.weight}};
  matmuls(a.x, calls);
  const Linear* const layers[] = {&a.wq, &a.wk, &a.wv};
  for (size_t i = 0; i < 3; ++i) {
    if (layers[i]->bias) add_bias(calls[i].out, calls[i].out, layers[i]->bias);
  }
  norm_heads(a.q, a.norm.kind, a.norm.q_weight, a.norm.eps);
  norm_heads(a.k, a.norm.kind, a.norm.k_weight, a.norm.eps);
}

void Backend::norm_heads(Tensor x, QkNorm kind, Tensor weight, float eps) {
  if (kind == QkNorm::None) return;
  const int64_t n_tokens = x.shape[0], n_heads = x.shape[1], head_dim = x.shape[2];
  const Tensor rows = x.reshaped(kind == QkNorm::PerHead ? Shape{n_tokens * n_heads, head_dim}
                                                         : Shape{n_tokens, n_heads * head_dim});
  rms_norm(rows, rows, weight, eps);
}

void Backend::qkv_append(const QkvArgs& args, KvLayer& cache, Tensor cos_sin, Batch batch) {
  qkv(args);
  rope_append(cache, args.q, args.k, args.v, cos_sin, batch);
}

void Backend::ffn_hidden(const FfnArgs& a) {
  const Tensor up_bias = a.up.bias;
  if (a.gate == nullptr) {
    matmul(a.out, a.x, a.up.weight);
    if (a.activation == Activation::Silu) {
      if (up_bias) add_bias(a.out, a.out, up_bias);
      return silu(a.out, a.out);
    }
    const GeluKind kind = gelu_kind(a.activation);
    return up_bias ? bias_gelu(a.out, a.out, up_bias, kind) : gelu(a.out, a.out, kind);
  }
  const Tensor gate = gate_scratch(a.out.dtype, a.out.shape);
  const Matmul calls[] = {{gate, a.gate->weight}, {a.out, a.up.weight}};
  matmuls(a.x, calls);
  if (a.gate->bias) add_bias(gate, gate, a.gate->bias);
  if (up_bias) add_bias(a.out, a.out, up_bias);
  MINFER_CHECK(a.activation == Activation::Silu, "a gate with activation ", int(a.activation));
  swiglu(a.out, gate, a.out);
}

void Backend::add_to_residual(Tensor x, Tensor input, const Linear& linear, const NormArgs* next) {
  if (communicator_ == nullptr) {
    matmul(x, input, linear.weight, /*accumulate=*/true);
  } else {
    const Tensor part = rank_scratch(activation_dtype(), x.shape);
    matmul(part, input, linear.weight);
    if (add_part_of_ranks(x, part, next, is_sum_and_rms_norm(linear, next))) return;
  }
  if (linear.bias) add_bias(x, x, linear.bias);
  if (next != nullptr) norm(*next);
}

bool Backend::add_part_of_ranks(Tensor x, Tensor part, const NormArgs* next, bool may_norm) {
  if (may_norm && communicator_->all_reduce_add_norm(x, part, next->out, next->weight, next->eps)) {
    return true;
  }
  if (!communicator_->all_reduce_add(x, part)) {
    communicator_->all_reduce(part);
    add(x, x, part);
  }
  return false;
}

void Backend::matmul_of_ranks(Tensor out, Tensor x, const Matrix& w, int64_t begin) {
  if (communicator_ == nullptr) return matmul(out, x, w);
  const Tensor part = rank_scratch(DType::F32, {x.shape[0], w.out_dim});
  matmul(part, x, w);
  communicator_->all_gather(out, part, begin);
}

std::string Backend::name_of_ranks() const {
  return n_ranks() == 1 ? name() : cat(n_ranks(), " x ", name());
}

int Backend::rank() const { return communicator_ == nullptr ? 0 : communicator_->rank(); }
int Backend::n_ranks_here() const { return ranks_ == nullptr ? 1 : ranks_->n_ranks(); }
int Backend::n_processes_of_host() const {
  return communicator_ == nullptr ? 1 : communicator_->n_processes_of_host();
}
int Backend::n_ranks() const { return communicator_ == nullptr ? 1 : communicator_->n_ranks(); }

int64_t Backend::ranks_workspace_bytes(int64_t n_rows, int64_t n, int64_t n_logits) const {
  if (communicator_ == nullptr) return 0;
  const int64_t n_elements = std::max(checked_mul(n_rows, n), n_logits);
  return checked_add(allocated_bytes(bytes_of(DType::F32, n_elements)),
                     communicator_->workspace_bytes(n_rows, n));
}

void Backend::reserve_for_ranks(int64_t n_rows, int64_t n, int64_t n_logits) {
  if (communicator_ == nullptr) return;
  rank_scratch(DType::F32, {1, std::max(n_rows * n, n_logits)});
  communicator_->reserve(n_rows, n);
}

Tensor Backend::gate_scratch(DType dtype, const Shape& shape) {
  if (!gate_ || gate_.view().n_elements() < shape.n_elements()) {
    gate_ = {};
    gate_ = allocate(dtype, shape);
  }
  return {gate_.view().data, dtype, shape};
}

Tensor Backend::rank_scratch(DType dtype, const Shape& shape) {
  const int64_t n = shape[0] * shape[1];
  if (!rank_scratch_ || rank_scratch_.view().n_elements() < n) {
    rank_scratch_ = {};
    rank_scratch_ = allocate(DType::F32, {n});
  }
  return {rank_scratch_.view().data, dtype, shape};
}

}  // namespace minfer
