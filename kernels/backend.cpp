#include "kernels/backend.h"

#include "kernels/decode_plan.h"

namespace minfer {

std::unique_ptr<DecodePlan> Backend::plan_decode(const DecodeModel&) { return nullptr; }

void Backend::rope_append(KvLayer& cache, Tensor q, Tensor k, Tensor v, Tensor cos_sin,
                          int64_t pos) {
  if (cos_sin) {
    rope(q, cos_sin, pos);
    rope(k, cos_sin, pos);
  }
  kv_append(cache, k, v, pos);
}

void Backend::qkv(const QkvArgs& a) {
  const auto rows = [](Tensor heads) {
    return heads.reshaped({heads.shape[0], heads.shape[1] * heads.shape[2]});
  };
  const Product products[] = {
      {rows(a.q), a.wq.weight}, {rows(a.k), a.wk.weight}, {rows(a.v), a.wv.weight}};
  matmuls(a.x, products);
  const Linear* const layers[] = {&a.wq, &a.wk, &a.wv};
  for (size_t i = 0; i < 3; ++i) {
    if (layers[i]->bias) add_bias(products[i].out, products[i].out, layers[i]->bias);
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

void Backend::qkv_append(const QkvArgs& args, KvLayer& cache, Tensor cos_sin, int64_t pos) {
  qkv(args);
  rope_append(cache, args.q, args.k, args.v, cos_sin, pos);
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
  const Product products[] = {{a.scratch, a.gate->weight}, {a.out, a.up.weight}};
  matmuls(a.x, products);
  if (a.gate->bias) add_bias(a.scratch, a.scratch, a.gate->bias);
  if (up_bias) add_bias(a.out, a.out, up_bias);
  MINFER_CHECK(a.activation == Activation::Silu, "a gate with activation ", int(a.activation));
  swiglu(a.out, a.scratch, a.out);
}

void Backend::add_to_residual(Tensor x, Tensor input, const Linear& linear) {
  matmul(x, input, linear.weight, /*accumulate=*/true);
  if (linear.bias) add_bias(x, x, linear.bias);
}

}  // namespace minfer
