#include "kernels/cuda/decode/decode_graph.h"

namespace minfer::cuda {

DecodeGraph::DecodeGraph(cudaStream_t stream, DType compute_type, const DecodeModel& model)
    : CapturedStep(stream, model, 0) {
  const DecodeLayer& first = model.layers.front();
  const auto row = [&](int64_t n) { return allocate_device(compute_type, {1, n}); };
  position_ = allocate_device(DType::F32, {1, model.embedding->in_dim});
  q_ = row(first.wq->out_dim);
  k_ = row(first.wk->out_dim);
  v_ = row(first.wv->out_dim);
  attended_ = row(first.wq->out_dim);
  hidden_ = row(first.w_up->out_dim);
  const KvLayer& cache = *first.cache;
  const int64_t n_bytes =
      attention_decode_workspace(model.n_heads, cache.n_kv_heads, cache.head_dim, cache.capacity);
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
  const bool is_rms = m.layers.front().w_gate != nullptr;
  const MatvecNorm norm{m.output_norm, m.output_norm_bias, m.norm_eps, is_rms};
  const MatvecPart head{m.output, logits(), {}};
  matvec(stream(), x(), &norm, {&head, 1}, Epilogue::Store);
}

void DecodeGraph::append_and_attend(const DecodeLayer& layer) {
  const auto heads = [&](const DeviceTensor& t) {
    return t.view().reshaped({t.view().n_elements() / model().head_dim, model().head_dim});
  };
  attention_decode(stream(), {.out = heads(attended_),
                              .q = heads(q_),
                              .k = heads(k_),
                              .v = heads(v_),
                              .rope = model().rope_table,
                              .cache = layer.cache,
                              .pos = &input()->pos,
                              .scale = model().attention_scale,
                              .workspace = workspace_.view().data});
}

void DecodeGraph::launch_layer(const DecodeLayer& layer) {
  const bool gated = layer.w_gate != nullptr;
  const MatvecNorm attn_norm{layer.attn_norm, layer.attn_norm_bias, model().norm_eps, gated};
  const MatvecPart qkv[] = {
      {layer.wq, q_, layer.bq}, {layer.wk, k_, layer.bk}, {layer.wv, v_, layer.bv}};
  matvec(stream(), x(), &attn_norm, qkv, Epilogue::Store);
  append_and_attend(layer);
  const MatvecPart wo{layer.wo, x(), layer.bo};
  matvec(stream(), attended_, nullptr, {&wo, 1}, Epilogue::Accumulate);

  const MatvecNorm ffn_norm{layer.ffn_norm, layer.ffn_norm_bias, model().norm_eps, gated};
  const MatvecPart up{layer.w_up, hidden_, layer.b_up};
  if (gated) {
    const MatvecPart both[] = {{layer.w_gate, hidden_, layer.b_gate}, up};
    matvec(stream(), x(), &ffn_norm, both, Epilogue::SwiGlu);
  } else {
    const Epilogue gelu = model().gelu == GeluKind::Erf ? Epilogue::GeluErf : Epilogue::GeluTanh;
    matvec(stream(), x(), &ffn_norm, {&up, 1}, gelu);
  }
  const MatvecPart down{layer.w_down, x(), layer.b_down};
  matvec(stream(), hidden_, nullptr, {&down, 1}, Epilogue::Accumulate);
}

}  // namespace minfer::cuda
