#pragma once

#include "kernels/moe.h"
#include "tests/support/tensors.h"

namespace minfer::test {

// A plain program in half precision, one operation after another, which whole models on a card are
// compared with besides float64. It runs the operations of the CPU, with float weights rounded to
// half; every result is rounded to half too: activations, the residual stream and logits.
class HalfBackend : public Backend {
 public:
  explicit HalfBackend(DType half) : half_(half) {}

  std::string name() const override { return cat("plain ", half_); }
  DType activation_dtype() const override { return DType::F32; }

  DeviceTensor allocate(DType dtype, const Shape& shape) override {
    return cpu_->allocate(dtype, shape);
  }
  DeviceTensor upload(const Tensor& host) override { return cpu_->upload(host); }
  void download_into(Tensor host, const Tensor& device) override {
    cpu_->download_into(host, device);
  }
  DeviceTensor upload_vector(const Tensor& host) override {
    const HostTensor values = to_f32_tensor(host);
    round(values);
    return cpu_->upload_vector(values);
  }
  Matrix pack_matrix(const Tensor& host) override {
    if (host.dtype == half_) return cpu_->pack_matrix(host);
    const HostTensor values = to_f32_tensor(host);
    HostTensor halves(half_, host.shape);
    visit_float(half_, [&]<typename T>() {
      for (int64_t i = 0; i < host.n_elements(); ++i) halves.as<T>()[i] = from_f32<T>(values.at(i));
    });
    return cpu_->pack_matrix(halves);
  }
  Matrix pack_matrix(const QuantizedMatrix& host) override { return cpu_->pack_matrix(host); }
  int64_t packed_bytes(const StoredMatrix& w) const override { return cpu_->packed_bytes(w); }
  KvLayer make_kv_layer(DType dtype, int64_t n_kv_heads, int64_t head_dim,
                        int64_t n_pages) override {
    return cpu_->make_kv_layer(dtype, n_kv_heads, head_dim, n_pages);
  }

  void embed(Tensor out, const Matrix& table, std::span<const TokenId> ids) override {
    cpu_->embed(out, table, ids);
  }
  void rope(Tensor x, Tensor cos_sin, Batch batch) override {
    cpu_->rope(x, cos_sin, batch);
    round(x);
  }
  void norm(const NormArgs& args) override {
    NormArgs plain = args;
    plain.activation.reset();
    cpu_->norm(plain);
    round(args.out);
    if (args.activation) gelu(args.out, args.out, gelu_kind(*args.activation));
  }
  void sum_squares(Tensor sums, Tensor x) override { cpu_->sum_squares(sums, x); }
  void rms_norm_by_sums(Tensor x, Tensor sums, Tensor weight, float eps) override {
    cpu_->rms_norm_by_sums(x, sums, weight, eps);
    round(x);
  }
  void gelu(Tensor out, Tensor x, GeluKind kind) override {
    cpu_->gelu(out, x, kind);
    round(out);
  }
  void bias_gelu(Tensor out, Tensor x, Tensor bias, GeluKind kind) override {
    add_bias(out, x, bias);
    gelu(out, out, kind);
  }
  void silu(Tensor out, Tensor x) override {
    cpu_->silu(out, x);
    round(out);
  }
  void glu(Tensor out, Tensor gate, Tensor up, Activation activation,
           const SwiGluClamp& clamp) override {
    cpu_->glu(out, gate, up, activation, clamp);
    round(out);
  }
  void scale_and_cap(Tensor x, float scale, float softcap) override {
    cpu_->scale_and_cap(x, scale, softcap);
    round(x);
  }
  void add(Tensor out, Tensor a, Tensor b) override {
    cpu_->add(out, a, b);
    round(out);
  }
  void add_bias(Tensor out, Tensor x, Tensor bias) override {
    if (bias) cpu_->add_bias(out, x, bias);
    round(out);
  }
  void softmax(Tensor out, Tensor x) override {
    cpu_->softmax(out, x);
    round(out);
  }
  void matmuls(Tensor x, std::span<const Matmul> calls) override {
    cpu_->matmuls(x, calls);
    for (const Matmul& call : calls) round(call.out);
  }
  void route(const RouteArgs& args) override { cpu_->route(args); }
  void run_experts(const ExpertsArgs& a) override {
    const Routing& r = a.routing;
    const int64_t dim = a.x.shape[1];
    for (int64_t place = 0; place < r.n_pairs(); ++place) {
      const int64_t pair = r.pairs[place];
      const Expert& expert = a.weights.experts[size_t(r.chosen[pair])];
      const Tensor hidden = a.hidden.rows(place, 1), out = a.out.rows(place, 1);
      const Tensor x = a.x.rows(pair / r.n_active, 1),
                   gate = gate_scratch(DType::F32, hidden.shape);
      MINFER_CHECK(out.shape[1] == dim, "an expert of width ", out.shape[1]);
      const auto linear = [&](const Tensor& to, const Tensor& from, const Linear& of) {
        matmul(to, from, of.weight);
        add_bias(to, to, of.bias);
      };
      linear(gate, x, expert.w_gate);
      linear(hidden, x, expert.w_up);
      glu(hidden, gate, hidden, a.spec.activation, a.spec.swiglu_clamp());
      linear(out, hidden, expert.w_down);
    }
  }
  void combine_experts(const CombineArgs& a) override {
    CombineArgs args = a;
    args.next = nullptr;
    cpu_->combine_experts(args);
    round(a.out);
    if (a.next != nullptr) norm(*a.next);
  }
  void kv_append(KvLayer& cache, Tensor k, Tensor v, Batch batch) override {
    cpu_->kv_append(cache, k, v, batch);
  }
  void attention(const AttentionArgs& args) override {
    cpu_->attention(args);
    round(args.out);
  }
  void negative_log_likelihoods(std::span<double> nll, Tensor logits,
                                std::span<const TokenId> targets) override {
    cpu_->negative_log_likelihoods(nll, logits, targets);
  }
  int64_t first_non_finite(Tensor x) override { return cpu_->first_non_finite(x); }
  void synchronize() override {}

 private:
  void round(Tensor x) const {
    for (int64_t i = 0; i < x.n_elements(); ++i) {
      float& value = x.as<float>()[i];
      value = float(rounded(double(value), half_));
    }
  }

  DType half_;
  std::unique_ptr<Backend> cpu_ = make_cpu_backend();
};

}  // namespace minfer::test
