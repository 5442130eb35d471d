#include "kernels/cuda/decode/decode_graph.h"

namespace minfer::cuda {

DecodeGraph::DecodeGraph(cudaStream_t stream, DType compute_type, const DecodeModel& model)
    : stream_(stream),
      model_(model),
      host_logits_(static_cast<size_t>(model.output->out_dim)),
      device_input_(allocate_device(DType::U8, {int64_t{sizeof(StepInput)}})) {
  const DecodeLayer& first = model.layers.front();
  const int64_t dim = model.embedding->in_dim;
  const auto row = [&](int64_t n) { return allocate_device(compute_type, {1, n}); };
  x_ = allocate_device(DType::F32, {1, dim});
  position_ = allocate_device(DType::F32, {1, dim});
  q_ = row(first.wq->out_dim);
  k_ = row(first.wk->out_dim);
  v_ = row(first.wv->out_dim);
  attended_ = row(first.wq->out_dim);
  hidden_ = row(first.w_up->out_dim);
  logits_ = allocate_device(DType::F32, {1, model.output->out_dim});
  const KvLayer& cache = *first.cache;
  const int64_t n_bytes =
      attention_decode_workspace(model.n_heads, cache.n_kv_heads, cache.head_dim, cache.capacity);
  workspace_ = allocate_device(DType::U8, {std::max<int64_t>(n_bytes, 1)});
  MINFER_CUDA_CHECK(cudaMemsetAsync(workspace_.view().data, 0,
                                    static_cast<size_t>(workspace_.view().n_bytes()), stream_));
  graph_ = capture_graph(stream_, [this] { launch_step(); });
}

std::span<const float> DecodeGraph::step(TokenId token, int64_t pos) {
  MINFER_CHECK(pos >= 0 && pos < model_.layers.front().cache->capacity, "decode at position ", pos);
  *input_.data() = {token, narrow<int32_t>(pos)};
  MINFER_CUDA_CHECK(cudaGraphLaunch(graph_.get(), stream_));
  MINFER_CUDA_CHECK(cudaStreamSynchronize(stream_));
  return {host_logits_.data(), host_logits_.size()};
}

void DecodeGraph::launch_step() {
  auto* const input = static_cast<StepInput*>(device_input_.view().data);
  MINFER_CUDA_CHECK(
      cudaMemcpyAsync(input, input_.data(), sizeof(StepInput), cudaMemcpyHostToDevice, stream_));
  gather_rows(stream_, x_, *model_.embedding, &input->token);
  if (model_.positions != nullptr) {
    gather_rows(stream_, position_, *model_.positions, &input->pos);
    add(stream_, x_, x_, position_);
  }
  for (const DecodeLayer& layer : model_.layers) launch_layer(layer);
  const bool is_rms = model_.layers.front().w_gate != nullptr;
  const MatvecNorm norm{model_.output_norm, model_.output_norm_bias, model_.norm_eps, is_rms};
  const MatvecPart head{model_.output, logits_, {}};
  matvec(stream_, x_, &norm, {&head, 1}, Epilogue::Store);
  MINFER_CUDA_CHECK(cudaMemcpyAsync(host_logits_.data(), logits_.view().data,
                                    static_cast<size_t>(logits_.view().n_bytes()),
                                    cudaMemcpyDeviceToHost, stream_));
}

void DecodeGraph::append_and_attend(const DecodeLayer& layer) {
  const auto heads = [&](const DeviceTensor& t) {
    return t.view().reshaped({t.view().n_elements() / model_.head_dim, model_.head_dim});
  };
  const auto* const input = static_cast<const StepInput*>(device_input_.view().data);
  attention_decode(stream_, {.out = heads(attended_),
                             .q = heads(q_),
                             .k = heads(k_),
                             .v = heads(v_),
                             .rope = model_.rope_table,
                             .cache = layer.cache,
                             .pos = &input->pos,
                             .scale = model_.attention_scale,
                             .workspace = workspace_.view().data});
}

void DecodeGraph::launch_layer(const DecodeLayer& layer) {
  const bool gated = layer.w_gate != nullptr;
  const MatvecNorm attn_norm{layer.attn_norm, layer.attn_norm_bias, model_.norm_eps, gated};
  const MatvecPart qkv[] = {
      {layer.wq, q_, layer.bq}, {layer.wk, k_, layer.bk}, {layer.wv, v_, layer.bv}};
  matvec(stream_, x_, &attn_norm, qkv, Epilogue::Store);
  append_and_attend(layer);
  const MatvecPart wo{layer.wo, x_, layer.bo};
  matvec(stream_, attended_, nullptr, {&wo, 1}, Epilogue::Accumulate);

  const MatvecNorm ffn_norm{layer.ffn_norm, layer.ffn_norm_bias, model_.norm_eps, gated};
  const MatvecPart up{layer.w_up, hidden_, layer.b_up};
  if (gated) {
    const MatvecPart both[] = {{layer.w_gate, hidden_, layer.b_gate}, up};
    matvec(stream_, x_, &ffn_norm, both, Epilogue::SwiGlu);
  } else {
    const Epilogue gelu = model_.gelu == GeluKind::Erf ? Epilogue::GeluErf : Epilogue::GeluTanh;
    matvec(stream_, x_, &ffn_norm, {&up, 1}, gelu);
  }
  const MatvecPart down{layer.w_down, x_, layer.b_down};
  matvec(stream_, hidden_, nullptr, {&down, 1}, Epilogue::Accumulate);
}

}  // namespace minfer::cuda
