#include "kernels/cuda/decode/decode_graph.h"

namespace minfer::cuda {

bool DecodeGraph::can_compute(const DecodeModel& model) {
  const LayerSpec& first = model.layers.front().spec;
  for (const DecodeLayer& layer : model.layers) {
    const LayerSpec& s = layer.spec;
    // A spec that differs from the neutral one in what is handled here, and in nothing else.
    const LayerSpec handled = {.n_heads = s.n_heads,
                               .n_kv_heads = s.n_kv_heads,
                               .head_dim = s.head_dim,
                               .ffn_dim = s.ffn_dim,
                               .norm = s.norm,
                               .norm_eps = s.norm_eps,
                               .qkv_bias = s.qkv_bias,
                               .attn_out_bias = s.attn_out_bias,
                               .ffn_bias = s.ffn_bias,
                               .qk_norm = s.qk_norm,
                               .rope = s.rope,
                               .attn_scale = s.attn_scale,
                               .activation = s.activation,
                               .gated = s.gated};
    const bool alike = s.q_dim() == first.q_dim() && s.kv_dim() == first.kv_dim() &&
                       s.head_dim == first.head_dim && s.ffn_dim == first.ffn_dim;
    if (s != handled || !alike || s.gated != (s.activation == Activation::Silu)) return false;
  }
  const EdgeSpec& e = model.edges;
  return e == EdgeSpec{.learned_positions = e.learned_positions,
                       .output_norm = e.output_norm,
                       .output_norm_eps = e.output_norm_eps};
}

DecodeGraph::DecodeGraph(cudaStream_t stream, DType compute_type, const DecodeModel& model)
    : CapturedStep(stream, model, 0) {
  const LayerSpec& first = model.layers.front().spec;
  const auto row = [&](int64_t n) { return allocate_device(compute_type, {1, n}); };
  position_ = allocate_device(DType::F32, {1, model.embedding->in_dim});
  q_ = row(first.q_dim());
  k_ = row(first.kv_dim());
  v_ = row(first.kv_dim());
  attended_ = row(first.q_dim());
  hidden_ = row(first.ffn_dim);
  const int64_t n_bytes = attention_decode_workspace(first.n_heads, first.n_kv_heads,
                                                     first.head_dim, model.max_seq_len);
  workspace_ = allocate_device(DType::U8, {std::max<int64_t>(n_bytes, 1)});
  MINFER_CUDA_CHECK(cudaMemsetAsync(workspace_.view().data, 0,
                                    static_cast<size_t>(workspace_.view().n_bytes()), stream));
}

void DecodeGraph::launch_layers() {
  const DecodeModel& m = model();
  if (m.positions != nullptr) {
    gather_rows(stream(), position_, *m.positions, &input()->pos);
    add(stream(), x(), x(), position_);
  }
  for (const DecodeLayer& layer : m.layers) launch_layer(layer);
  const MatvecNorm norm{m.output_norm->weight, m.output_norm->bias, m.edges.output_norm_eps,
                        m.edges.output_norm == NormKind::Rms};
  const MatvecPart head{m.output, logits(), {}};
  matvec(stream(), x(), &norm, {&head, 1}, Epilogue::Store);
}

void DecodeGraph::norm_heads(const DeviceTensor& row, const LayerSpec& spec, const Norm& norm) {
  if (spec.qk_norm == QkNorm::None) return;
  const int64_t n = spec.qk_norm == QkNorm::PerHead ? spec.head_dim : row.view().n_elements();
  const Tensor rows = row.view().reshaped({row.view().n_elements() / n, n});
  rms_norm(stream(), rows, rows, norm.weight, spec.norm_eps);
}

void DecodeGraph::append_and_attend(const DecodeLayer& layer) {
  const auto heads = [&](const DeviceTensor& t) {
    const int64_t head_dim = layer.spec.head_dim;
    return t.view().reshaped({t.view().n_elements() / head_dim, head_dim});
  };
  attention_decode(stream(), {.out = heads(attended_),
                              .q = heads(q_),
                              .k = heads(k_),
                              .v = heads(v_),
                              .rope = rope_of(model(), layer.spec),
                              .cache = layer.cache,
                              .pages = pages(),
                              .pos = &input()->pos,
                              .max_seq_len = model().max_seq_len,
                              .scale = layer.spec.score_scale(),
                              .workspace = workspace_.view().data});
}

void DecodeGraph::launch_layer(const DecodeLayer& layer) {
  const LayerSpec& spec = layer.spec;
  const LayerWeights& w = *layer.weights;
  const auto norm_of = [&](const Norm& norm) {
    return MatvecNorm{norm.weight, norm.bias, spec.norm_eps, spec.norm == NormKind::Rms};
  };
  const auto part_of = [](const Linear& linear, Tensor out) {
    return MatvecPart{&linear.weight, out, linear.bias};
  };
  const MatvecNorm attn_norm = norm_of(w.attn_norm);
  const MatvecPart qkv[] = {part_of(w.wq, q_), part_of(w.wk, k_), part_of(w.wv, v_)};
  matvec(stream(), x(), &attn_norm, qkv, Epilogue::Store);
  norm_heads(q_, spec, w.q_norm);
  norm_heads(k_, spec, w.k_norm);
  append_and_attend(layer);
  const MatvecPart wo = part_of(w.wo, x());
  matvec(stream(), attended_, nullptr, {&wo, 1}, Epilogue::Accumulate);

  const MatvecNorm ffn_norm = norm_of(w.ffn_norm);
  const MatvecPart up = part_of(w.w_up, hidden_);
  if (spec.gated) {
    const MatvecPart both[] = {part_of(w.w_gate, hidden_), up};
    matvec(stream(), x(), &ffn_norm, both, Epilogue::SwiGlu);
  } else {
    const bool is_erf = spec.activation == Activation::GeluErf;
    matvec(stream(), x(), &ffn_norm, {&up, 1}, is_erf ? Epilogue::GeluErf : Epilogue::GeluTanh);
  }
  const MatvecPart down = part_of(w.w_down, x());
  matvec(stream(), hidden_, nullptr, {&down, 1}, Epilogue::Accumulate);
}

}  // namespace minfer::cuda
