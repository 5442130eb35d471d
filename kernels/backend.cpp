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

void check_norm_weights(const NormArgs& a) {
  const int64_t n = a.x.shape.last();
  const bool is_none = a.kind == NormKind::None;
  MINFER_CHECK(is_none == !a.weight && (is_none || a.weight.shape.last() == n), "a norm of x ",
               a.x.shape, " by weights ", a.weight.shape);
  const bool has_rows = a.weight && a.weight.shape.rank == 2;
  MINFER_CHECK(!has_rows || a.x.n_elements() % a.weight.n_elements() == 0, "a norm of x ",
               a.x.shape, " by weights ", a.weight.shape);
  MINFER_CHECK(!a.bias || (a.kind == NormKind::Layer && !has_rows && a.bias.shape == Shape{n}),
               "a norm of x ", a.x.shape, " with bias ", a.bias.shape);
  MINFER_CHECK(!a.activation || a.kind == NormKind::Layer, "a norm with activation ",
               int(*a.activation));
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
  const Tensor rows = x.reshaped(kind == QkNorm::WholeWidth ? Shape{n_tokens, n_heads * head_dim}
                                                            : Shape{n_tokens * n_heads, head_dim});
  if (kind == QkNorm::WholeWidth && communicator_ != nullptr) {
    const Tensor sums = part_scratch(DType::F32, {n_tokens, 2});
    sum_squares(sums, rows);
    communicator_->all_reduce(sums);
    return rms_norm_by_sums(rows, sums, weight, eps);
  }
  const bool has_own = kind == QkNorm::LayerOfEachHead;
  norm({.out = rows,
        .x = rows,
        .weight = has_own ? weight.reshaped({n_heads, head_dim}) : weight,
        .bias = {},
        .kind = has_own ? NormKind::Layer : NormKind::Rms,
        .eps = eps});
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
  glu(a.out, gate, a.out, a.activation);
}

void Backend::add_to_residual(const ResidualArgs& a) {
  const Tensor& x = a.x;
  if (!a.is_plain()) {
    const Tensor part = part_scratch(activation_dtype(), x.shape);
    matmul(part, a.input, a.linear.weight);
    if (communicator_ != nullptr) communicator_->all_reduce(part);
    if (a.linear.bias) add_bias(part, part, a.linear.bias);
    return add_part(a, part);
  }
  if (communicator_ == nullptr) {
    matmul(x, a.input, a.linear.weight, /*accumulate=*/true);
  } else {
    const Tensor part = part_scratch(activation_dtype(), x.shape);
    matmul(part, a.input, a.linear.weight);
    if (add_part_of_ranks(a, part)) return;
  }
  if (a.linear.bias) add_bias(x, x, a.linear.bias);
  if (a.next != nullptr) norm(*a.next);
}

void Backend::add_part(const ResidualArgs& a, Tensor part) {
  const NormWeights& post = a.post_norm;
  if (post.kind != NormKind::None) {
    norm({.out = part,
          .x = part,
          .weight = post.weight,
          .bias = post.bias,
          .kind = post.kind,
          .eps = post.eps});
  }
  if (a.scale != 1) scale_and_cap(part, a.scale);
  add(a.x, a.x, part);
  if (a.next != nullptr) norm(*a.next);
}

bool Backend::add_part_of_ranks(const ResidualArgs& a, Tensor part) {
  if (is_sum_and_rms_norm(a) &&
      communicator_->all_reduce_add_norm(a.x, part, a.next->out, a.next->weight, a.next->eps)) {
    return true;
  }
  if (!communicator_->all_reduce_add(a.x, part)) {
    communicator_->all_reduce(part);
    add(a.x, a.x, part);
  }
  return false;
}

void Backend::matmul_of_ranks(Tensor out, Tensor x, const Matrix& w, int64_t begin) {
  if (communicator_ == nullptr) return matmul(out, x, w);
  const Tensor part = part_scratch(DType::F32, {x.shape[0], w.out_dim});
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

int64_t Backend::residual_workspace_bytes(int64_t n_rows, int64_t n) const {
  return communicator_ != nullptr ? 0 : allocated_bytes(bytes_of(DType::F32, {n_rows, n}));
}

int64_t Backend::ranks_workspace_bytes(int64_t n_rows, int64_t n, int64_t n_logits) const {
  if (communicator_ == nullptr) return 0;
  const int64_t n_elements = std::max(checked_mul(n_rows, n), n_logits);
  return checked_add(allocated_bytes(bytes_of(DType::F32, n_elements)),
                     communicator_->workspace_bytes(n_rows, n));
}

void Backend::reserve_for_ranks(int64_t n_rows, int64_t n, int64_t n_logits) {
  if (communicator_ == nullptr) return;
  part_scratch(DType::F32, {1, std::max(n_rows * n, n_logits)});
  communicator_->reserve(n_rows, n);
}

Tensor Backend::gate_scratch(DType dtype, const Shape& shape) {
  if (!gate_ || gate_.view().n_elements() < shape.n_elements()) {
    gate_ = {};
    gate_ = allocate(dtype, shape);
  }
  return {gate_.view().data, dtype, shape};
}

Tensor Backend::part_scratch(DType dtype, const Shape& shape) {
  const int64_t n = shape[0] * shape[1];
  if (!part_scratch_ || part_scratch_.view().n_elements() < n) {
    part_scratch_ = {};
    part_scratch_ = allocate(DType::F32, {n});
  }
  return {part_scratch_.view().data, dtype, shape};
}

}  // namespace minfer
