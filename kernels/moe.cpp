#include "kernels/moe.h"

#include <algorithm>

#include "kernels/comm/communicator.h"

namespace minfer {
namespace {

constexpr int64_t kArrayAlignment = 256;

// Hands out parts of a memory one after another; of null memory, only how much they take.
class Carver {
 public:
  explicit Carver(void* memory) : memory_(static_cast<char*>(memory)) {}

  void* take(int64_t n_bytes) {
    char* const at = memory_ == nullptr ? nullptr : memory_ + n_bytes_;
    n_bytes_ = checked_add(n_bytes_, align_up(n_bytes, kArrayAlignment));
    return at;
  }
  Tensor tensor(DType dtype, const Shape& shape) {
    return {take(bytes_of(dtype, shape)), dtype, shape};
  }
  int64_t n_bytes() const { return n_bytes_; }

 private:
  char* memory_;
  int64_t n_bytes_ = 0;
};

// The workspace of add_experts().
struct MoeScratch {
  Tensor logits, hidden, outs, shared_hidden, shared, shared_gate;
  void* routing = nullptr;
  int64_t n_bytes = 0;

  MoeScratch(void* memory, DType dtype, int64_t n_rows, int64_t dim, const LayerSpec& spec) {
    Carver carver(memory);
    const int64_t n_pairs = checked_mul(n_rows, spec.n_active_experts);
    logits = carver.tensor(DType::F32, {n_rows, spec.n_experts});
    routing = carver.take(Routing::bytes(n_rows, spec.n_experts, spec.n_active_experts));
    hidden = carver.tensor(dtype, {n_pairs, spec.ffn_dim});
    outs = carver.tensor(dtype, {n_pairs, dim});
    if (spec.shared_ffn_dim > 0) {
      shared_hidden = carver.tensor(dtype, {n_rows, spec.shared_ffn_dim});
      shared = carver.tensor(dtype, {n_rows, dim});
      if (spec.shared_gate) shared_gate = carver.tensor(DType::F32, {n_rows, 1});
    }
    n_bytes = carver.n_bytes();
  }
};

[[noreturn]] void throw_without_experts(const Backend& backend) {
  throw Error(ErrorKind::Internal, cat(backend.name(), " computes no experts"));
}

}  // namespace

void LayerSpec::take_experts_of(const LayerSpec& s) {
  if (!s.has_experts()) return;
  if (s.activation == Activation::ClampedSwiGlu) {
    swiglu_alpha = s.swiglu_alpha;
    swiglu_limit = s.swiglu_limit;
  }
  n_experts = s.n_experts;
  n_active_experts = s.n_active_experts;
  shared_ffn_dim = s.shared_ffn_dim;
  shared_gate = s.shared_ffn_dim > 0 && s.shared_gate;
  router_score = s.router_score;
  router_bias = s.router_bias;
  router_correction = s.router_correction;
  renormalizes_experts = s.renormalizes_experts;
  router_scale = s.router_scale;
}

Routing::Routing(void* memory, int64_t n_rows_, int64_t n_experts_, int64_t n_active_)
    : n_rows(n_rows_), n_experts(n_experts_), n_active(n_active_) {
  Carver carver(memory);
  const int64_t n = n_pairs();
  weights = static_cast<float*>(carver.take(n * int64_t{sizeof(float)}));
  const auto integers = [&](int64_t count) {
    return static_cast<int32_t*>(carver.take(count * int64_t{sizeof(int32_t)}));
  };
  chosen = integers(n);
  begins = integers(n_experts + 1);
  pairs = integers(n);
  places = integers(n);
}

int64_t Routing::bytes(int64_t n_rows, int64_t n_experts, int64_t n_active) {
  const int64_t of_pairs =
      align_up(checked_mul(checked_mul(n_rows, n_active), int64_t{4}), kArrayAlignment);
  return 4 * of_pairs + align_up((n_experts + 1) * 4, kArrayAlignment);
}

void Backend::route(const RouteArgs&) { throw_without_experts(*this); }
void Backend::run_experts(const ExpertsArgs&) { throw_without_experts(*this); }
void Backend::combine_experts(const CombineArgs&) { throw_without_experts(*this); }

int64_t Backend::moe_workspace_bytes(int64_t n_rows, int64_t dim, const LayerSpec& layer) const {
  return MoeScratch(nullptr, activation_dtype(), n_rows, dim, layer).n_bytes;
}

int64_t Backend::expert_workspace_bytes(int64_t n_rows, const LayerSpec& layer,
                                        std::span<const StoredMatrix> of_one) const {
  return matmul_workspace_bytes(checked_mul(n_rows, layer.n_active_experts), of_one);
}

void Backend::add_experts(const MoeArgs& a) {
  const LayerSpec& spec = a.spec;
  const int64_t n_rows = a.x.shape[0], dim = a.x.shape[1];
  MINFER_CHECK(a.input.shape == a.x.shape && spec.n_active_experts >= 1 &&
                   spec.n_active_experts <= spec.n_experts &&
                   std::ssize(a.weights.experts) == spec.n_experts,
               "experts: x ", a.x.shape, ", input ", a.input.shape, ", ", spec.n_active_experts,
               " of ", spec.n_experts, " experts, weights of ", a.weights.experts.size());
  if (n_rows == 0) return;
  const int64_t n_bytes = MoeScratch(nullptr, activation_dtype(), n_rows, dim, spec).n_bytes;
  if (!moe_scratch_ || moe_scratch_.view().n_bytes() < n_bytes) {
    moe_scratch_ = {};
    moe_scratch_ = allocate(DType::U8, {n_bytes});
  }
  const MoeScratch s(moe_scratch_.view().data, activation_dtype(), n_rows, dim, spec);

  matmul(s.logits, a.input, a.weights.router);
  const Routing routing(s.routing, n_rows, spec.n_experts, spec.n_active_experts);
  route({routing, s.logits, a.weights.router_bias, a.weights.router_correction, spec});
  run_experts({s.outs, a.input, s.hidden, routing, a.weights, spec});
  if (s.shared) {
    const Expert& shared = a.weights.shared;
    ffn_hidden({.out = s.shared_hidden,
                .x = a.input,
                .gate = &shared.w_gate,
                .up = shared.w_up,
                .activation = spec.activation});
    matmul(s.shared, s.shared_hidden, shared.w_down.weight);
    if (s.shared_gate) matmul(s.shared_gate, a.input, a.weights.shared_gate);
  }
  const Linear no_linear;
  const ResidualArgs residual{.x = a.x,
                              .input = {},
                              .linear = no_linear,
                              .post_norm = a.post_norm,
                              .scale = a.scale,
                              .next = a.next};
  if (communicator_ == nullptr && residual.is_plain()) {
    return combine_experts(
        {a.x, s.outs, s.shared, s.shared_gate, routing, /*accumulate=*/true, a.next});
  }
  const Tensor part = part_scratch(activation_dtype(), a.x.shape);
  combine_experts({part, s.outs, s.shared, s.shared_gate, routing});
  if (!residual.is_plain()) {
    if (communicator_ != nullptr) communicator_->all_reduce(part);
    return add_part(residual, part);
  }
  if (add_part_of_ranks(residual, part)) return;
  if (a.next != nullptr) norm(*a.next);
}

}  // namespace minfer
