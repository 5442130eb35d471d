#include "kernels/cuda/decode/graph/decode_layers.h"

#include <algorithm>

#include "kernels/cuda/device.h"
#include "kernels/cuda/moe/moe.h"

namespace minfer::cuda {

bool DecodeLayers::can_compute(const DecodeModel& model) {
  const LayerSpec& first = model.layers.front().spec;
  for (const DecodeLayer& layer : model.layers) {
    const LayerSpec& s = layer.spec;
    const bool has_experts = s.has_experts();
    const bool is_clamped = has_experts && s.activation == Activation::ClampedSwiGlu;
    // The neutral spec with the fields that are handled here: `s` differs if it sets any other.
    LayerSpec handled = {.n_heads = s.n_heads,
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
                         .window = s.window,
                         .attn_sinks = s.attn_sinks,
                         .activation = s.activation,
                         .gated = s.gated};
    handled.take_experts_of(s);
    const bool alike =
        s.q_dim() == first.q_dim() && s.kv_dim() == first.kv_dim() && s.head_dim == first.head_dim;
    const bool is_other_kind = s.gated != (is_clamped || s.activation == Activation::Silu) ||
                               s.qk_norm == QkNorm::LayerOfEachHead || s.norm == NormKind::None;
    if (s != handled || !alike || is_other_kind) return false;
    if (has_experts && (s.n_active_experts < 1 || !s.gated)) return false;
    if (s.shared_ffn_dim > 0 && (is_clamped || s.ffn_bias)) return false;
    // Blocks of one kind use the same buffers.
    const auto same_kind = [&](const DecodeLayer& other) {
      return other.spec.has_experts() == has_experts;
    };
    const LayerSpec& like = std::ranges::find_if(model.layers, same_kind)->spec;
    if (s.ffn_dim != like.ffn_dim || s.n_experts != like.n_experts ||
        s.n_active_experts != like.n_active_experts || s.shared_ffn_dim != like.shared_ffn_dim) {
      return false;
    }
  }
  const EdgeSpec& e = model.edges;
  return e == EdgeSpec{.learned_positions = e.learned_positions,
                       .output_norm = e.output_norm,
                       .output_norm_eps = e.output_norm_eps};
}

DecodeLayers::DecodeLayers(cudaStream_t stream, DType compute_type, const DecodeModel& model,
                           int64_t max_rows)
    : stream_(stream), model_(model) {
  MINFER_CHECK(max_rows >= 1 && max_rows <= kMaxGemvTokens, "a step of ", max_rows, " rows");
  const LayerSpec& first = model.layers.front().spec;
  const auto rows = [&](int64_t n) { return allocate_device(compute_type, {max_rows, n}); };
  position_ = allocate_device(DType::F32, {max_rows, model.embedding->in_dim});
  q_ = rows(first.q_dim());
  k_ = rows(first.kv_dim());
  v_ = rows(first.kv_dim());
  attended_ = rows(first.q_dim());
  for (const DecodeLayer& layer : model.layers) {
    const LayerSpec& s = layer.spec;
    if (!s.has_experts()) {
      hidden_ = rows(s.ffn_dim);
      continue;
    }
    const auto floats = [&](int64_t n) { return allocate_device(DType::F32, {max_rows, n}); };
    logits_ = floats(s.n_experts);
    expert_hidden_ = rows(s.n_active_experts * s.ffn_dim);
    if (s.shared_ffn_dim == 0) continue;
    shared_hidden_ = rows(s.shared_ffn_dim);
    shared_ = rows(model.embedding->in_dim);
    shared_gate_ = floats(1);
  }
  const int64_t n_bytes = attention_decode_workspace(max_rows, first.n_heads, first.n_kv_heads,
                                                     first.head_dim, model.max_seq_len);
  workspace_ = allocate_device(DType::U8, {std::max<int64_t>(n_bytes, 1)});
  MINFER_CUDA_CHECK(cudaMemsetAsync(workspace_.view().data, 0,
                                    static_cast<size_t>(workspace_.view().n_bytes()), stream));
}

void DecodeLayers::launch(Tensor x, Tensor logits, const StepRows& rows) {
  const DecodeModel& m = model_;
  if (m.positions != nullptr) {
    const Tensor at = position_.view().rows(0, x.shape[0]);
    gather_rows(stream_, at, *m.positions, rows.pos);
    add(stream_, x, x, at);
  }
  bool behind_experts = false;
  for (const DecodeLayer& layer : m.layers) {
    launch_layer(layer, behind_experts, x, rows);
    behind_experts = layer.spec.has_experts();
  }
  launch_output(stream_, m, x, logits, behind_experts);
}

void DecodeLayers::launch_output(cudaStream_t stream, const DecodeModel& m, Tensor x, Tensor logits,
                                 bool behind_experts) {
  const GemvNorm norm{m.output_norm->weight, m.output_norm->bias, m.edges.output_norm_eps,
                      m.edges.output_norm == NormKind::Rms};
  const GemvPart head{m.output, logits, {}};
  gemv(stream, x, &norm, {&head, 1}, Epilogue::Store, behind_experts);
}

void DecodeLayers::launch_layer(const DecodeLayer& layer, bool behind_experts, Tensor x,
                                const StepRows& rows) {
  const LayerSpec& spec = layer.spec;
  const LayerWeights& w = *layer.weights;
  const int64_t n_rows = x.shape[0];
  const auto of_step = [&](const DeviceTensor& buffer) { return buffer.view().rows(0, n_rows); };
  const auto heads = [&](const DeviceTensor& buffer) {
    const Tensor t = of_step(buffer);
    return t.reshaped({n_rows, t.shape[1] / spec.head_dim, spec.head_dim});
  };
  const auto norm_of = [&](const Norm& norm) {
    return GemvNorm{norm.weight, norm.bias, spec.norm_eps, spec.norm == NormKind::Rms};
  };
  const auto part_of = [](const Linear& linear, Tensor out) {
    return GemvPart{&linear.weight, out, linear.bias};
  };
  const GemvNorm attn_norm = norm_of(w.attn_norm);
  const GemvPart qkv[] = {part_of(w.wq, of_step(q_)), part_of(w.wk, of_step(k_)),
                          part_of(w.wv, of_step(v_))};
  gemv(stream_, x, &attn_norm, qkv, Epilogue::Store, behind_experts);
  if (spec.qk_norm == QkNorm::WholeWidth) {
    rms_norm(stream_, of_step(q_), of_step(q_), w.q_norm.weight, spec.norm_eps);
    rms_norm(stream_, of_step(k_), of_step(k_), w.k_norm.weight, spec.norm_eps);
  }
  const bool norms_heads = spec.qk_norm == QkNorm::PerHead;
  attention_decode(stream_, {.out = heads(attended_),
                             .q = heads(q_),
                             .k = heads(k_),
                             .v = heads(v_),
                             .rope = model_.rope_of(spec),
                             .cache = layer.cache,
                             .pages = rows.pages,
                             .pos = rows.pos,
                             .rows_of_sequence = rows.of_sequence,
                             .max_seq_len = model_.max_seq_len,
                             .scale = spec.score_scale(),
                             .window = spec.window,
                             .sinks = w.sinks,
                             .q_norm = norms_heads ? w.q_norm.weight.view() : Tensor(),
                             .k_norm = norms_heads ? w.k_norm.weight.view() : Tensor(),
                             .norm_eps = spec.norm_eps,
                             .workspace = workspace_.view().data});
  const GemvPart wo = part_of(w.wo, x);
  gemv(stream_, of_step(attended_), nullptr, {&wo, 1}, Epilogue::Accumulate);

  const GemvNorm ffn_norm = norm_of(w.ffn_norm);
  if (spec.has_experts()) return launch_experts(layer, x, ffn_norm);
  const GemvPart up = part_of(w.w_up, of_step(hidden_));
  if (spec.gated) {
    const GemvPart both[] = {part_of(w.w_gate, of_step(hidden_)), up};
    gemv(stream_, x, &ffn_norm, both, Epilogue::SwiGlu);
  } else {
    const bool is_erf = spec.activation == Activation::GeluErf;
    gemv(stream_, x, &ffn_norm, {&up, 1}, is_erf ? Epilogue::GeluErf : Epilogue::GeluTanh);
  }
  const GemvPart down = part_of(w.w_down, x);
  gemv(stream_, of_step(hidden_), nullptr, {&down, 1}, Epilogue::Accumulate);
}

void DecodeLayers::launch_experts(const DecodeLayer& layer, Tensor x, const GemvNorm& norm) {
  const LayerSpec& spec = layer.spec;
  const MoeWeights& moe = layer.weights->moe;
  const int64_t n_rows = x.shape[0];
  const auto of_step = [&](const DeviceTensor& buffer) { return buffer.view().rows(0, n_rows); };
  std::vector<GemvPart> routers = {{&moe.router, of_step(logits_), {}}};
  if (spec.shared_gate) routers.push_back({&moe.shared_gate, of_step(shared_gate_), {}});
  gemv(stream_, x, &norm, routers, Epilogue::Store);
  if (spec.shared_ffn_dim > 0) {
    const Tensor hidden = of_step(shared_hidden_);
    const GemvPart both[] = {{&moe.shared.w_gate.weight, hidden, {}},
                             {&moe.shared.w_up.weight, hidden, {}}};
    gemv(stream_, x, &norm, both, Epilogue::SwiGlu);
    const GemvPart down{&moe.shared.w_down.weight, of_step(shared_), {}};
    gemv(stream_, hidden, nullptr, {&down, 1}, Epilogue::Store);
  }
  expert_gemv(
      stream_,
      {.x = x,
       .norm = norm,
       .logits = of_step(logits_),
       .hidden = of_step(expert_hidden_).reshaped({n_rows, spec.n_active_experts, spec.ffn_dim}),
       .moe = moe,
       .spec = spec});
  if (spec.shared_ffn_dim == 0) return;
  // The shared expert is what is left of a sum over no chosen ones.
  const Routing none(nullptr, n_rows, spec.n_experts, 0);
  combine_experts(stream_, {.out = x,
                            .outs = Tensor{nullptr, shared_.view().dtype, {0, x.shape[1]}},
                            .shared = of_step(shared_),
                            .shared_gate = spec.shared_gate ? of_step(shared_gate_) : Tensor(),
                            .routing = none,
                            .accumulate = true});
}

}  // namespace minfer::cuda
