#include "models/weight_list.h"

#include <algorithm>
#include <iterator>

namespace minfer {
namespace {

class Walk {
 public:
  Walk(const ModelSpec& spec, const std::function<void(const WeightInfo&)>& visit)
      : spec_(spec), visit_(visit) {}

  void run() {
    const int64_t dim = spec_.dim;
    table(WeightRole::Embedding, spec_.vocab_size, !spec_.tied_output);
    if (spec_.edges.learned_positions) table(WeightRole::Positions, spec_.trained_seq_len, true);
    for (const LayerSpec& layer : spec_.layers) {
      ++layer_;
      if (layer.has_norm_before()) norm(WeightRole::AttnNorm, dim, layer.norm, layer.norm_bias);
      linear(WeightRole::Wq, layer.q_dim(), dim, layer.qkv_bias, SliceAxis::Out);
      linear(WeightRole::Wk, layer.kv_dim(), dim, layer.qkv_bias, SliceAxis::Out);
      linear(WeightRole::Wv, layer.kv_dim(), dim, layer.qkv_bias, SliceAxis::Out);
      qk_norms(layer);
      if (layer.attn_sinks) vector(WeightRole::Sinks, layer.n_heads, SliceAxis::Out);
      linear(WeightRole::Wo, dim, layer.q_dim(), layer.attn_out_bias, SliceAxis::In);
      const bool has_post = layer.has_norm_behind();
      if (has_post) norm(WeightRole::AttnPostNorm, dim, layer.norm, layer.norm_bias);
      if (layer.has_norm_before() && !layer.shared_norm) {
        norm(WeightRole::FfnNorm, dim, layer.norm, layer.norm_bias);
      }
      if (layer.has_experts()) {
        experts(layer);
      } else {
        ffn(layer);
      }
      if (has_post) norm(WeightRole::FfnPostNorm, dim, layer.norm, layer.norm_bias);
    }
    layer_ = -1;
    norm(WeightRole::OutputNorm, dim, spec_.edges.output_norm, spec_.edges.output_norm_bias);
    if (!spec_.tied_output) {
      visit_({.role = WeightRole::Output,
              .shape = {spec_.n_output_rows(), dim},
              .slice = SliceAxis::Out});
    }
    if (spec_.edges.output_bias) {  // added to the logits of all ranks
      visit_({.role = WeightRole::Output, .is_bias = true, .shape = {spec_.vocab_size}});
    }
  }

 private:
  void table(WeightRole role, int64_t n_rows, bool is_table) {
    visit_({.role = role, .shape = {n_rows, spec_.dim}, .is_table = is_table});
  }

  void linear(WeightRole role, int64_t out_dim, int64_t in_dim, bool has_bias, SliceAxis slice,
              int64_t expert = -1) {
    visit_({.role = role,
            .layer = layer_,
            .expert = expert,
            .shape = {out_dim, in_dim},
            .slice = slice});
    if (!has_bias) return;
    // If the inputs are sliced, the outputs are sums over ranks: the whole bias is added once.
    const SliceAxis of_bias = slice == SliceAxis::Out ? SliceAxis::Out : SliceAxis::None;
    visit_({.role = role,
            .is_bias = true,
            .layer = layer_,
            .expert = expert,
            .shape = {out_dim},
            .slice = of_bias});
  }

  void vector(WeightRole role, int64_t n, SliceAxis slice) {
    visit_({.role = role, .layer = layer_, .shape = {n}, .slice = slice});
  }

  void ffn(const LayerSpec& layer) {
    const int64_t dim = spec_.dim, n = layer.ffn_dim;
    if (layer.gated) linear(WeightRole::WGate, n, dim, layer.ffn_bias, SliceAxis::Out);
    linear(WeightRole::WUp, n, dim, layer.ffn_bias, SliceAxis::Out);
    linear(WeightRole::WDown, dim, n, layer.ffn_bias, SliceAxis::In);
  }

  void experts(const LayerSpec& layer) {
    const int64_t dim = spec_.dim, n = layer.n_experts;
    linear(WeightRole::Router, n, dim, layer.router_bias, SliceAxis::None);
    if (layer.router_correction) {
      visit_(
          {.role = WeightRole::RouterCorrection, .is_bias = true, .layer = layer_, .shape = {n}});
    }
    const bool has_bias = layer.ffn_bias;
    for (int64_t e = 0; e < n; ++e) {
      linear(WeightRole::ExpertGate, layer.ffn_dim, dim, has_bias, SliceAxis::Out, e);
      linear(WeightRole::ExpertUp, layer.ffn_dim, dim, has_bias, SliceAxis::Out, e);
    }
    const int64_t shared_dim = layer.shared_ffn_dim;
    if (shared_dim > 0) {
      if (layer.shared_gate) {
        linear(WeightRole::SharedExpertGate, 1, dim, false, SliceAxis::None);
      }
      linear(WeightRole::SharedGate, shared_dim, dim, false, SliceAxis::Out);
      linear(WeightRole::SharedUp, shared_dim, dim, false, SliceAxis::Out);
    }
    for (int64_t e = 0; e < n; ++e) {
      linear(WeightRole::ExpertDown, dim, layer.ffn_dim, has_bias, SliceAxis::In, e);
    }
    if (shared_dim > 0) linear(WeightRole::SharedDown, dim, shared_dim, false, SliceAxis::In);
  }

  void norm(WeightRole role, int64_t n, NormKind kind, bool has_bias,
            SliceAxis slice = SliceAxis::None) {
    visit_({.role = role, .layer = layer_, .shape = {n}, .slice = slice});
    if (kind == NormKind::Layer && has_bias) {
      visit_({.role = role, .is_bias = true, .layer = layer_, .shape = {n}, .slice = slice});
    }
  }

  void qk_norms(const LayerSpec& layer) {
    if (layer.qk_norm == QkNorm::None) return;
    const bool per_head = layer.qk_norm == QkNorm::PerHead;
    const SliceAxis slice = per_head ? SliceAxis::None : SliceAxis::Out;
    norm(WeightRole::QNorm, per_head ? layer.head_dim : layer.q_dim(), NormKind::Rms, false, slice);
    norm(WeightRole::KNorm, per_head ? layer.head_dim : layer.kv_dim(), NormKind::Rms, false,
         slice);
  }

  const ModelSpec& spec_;
  const std::function<void(const WeightInfo&)>& visit_;
  int64_t layer_ = -1;
};

// T is Weights or const Weights.
template <typename T>
auto& layer_of(T& weights, const WeightInfo& info) {
  return weights.layers.at(static_cast<size_t>(info.layer));
}

template <typename T>
auto& linear_of(T& layer, const WeightInfo& info) {
  const auto expert = [&]() -> auto& { return layer.moe.experts.at(size_t(info.expert)); };
  switch (info.role) {
    case WeightRole::ExpertGate:
      return expert().w_gate;
    case WeightRole::ExpertUp:
      return expert().w_up;
    case WeightRole::ExpertDown:
      return expert().w_down;
    case WeightRole::SharedGate:
      return layer.moe.shared.w_gate;
    case WeightRole::SharedUp:
      return layer.moe.shared.w_up;
    case WeightRole::SharedDown:
      return layer.moe.shared.w_down;
    case WeightRole::Wq:
      return layer.wq;
    case WeightRole::Wk:
      return layer.wk;
    case WeightRole::Wv:
      return layer.wv;
    case WeightRole::Wo:
      return layer.wo;
    case WeightRole::WGate:
      return layer.w_gate;
    case WeightRole::WUp:
      return layer.w_up;
    case WeightRole::WDown:
      return layer.w_down;
    default:
      throw Error(ErrorKind::Internal, "a weight that is no linear layer");
  }
}

template <typename T>
auto& matrix_in(T& weights, const WeightInfo& info) {
  MINFER_CHECK(info.is_matrix(), "a weight of shape ", info.shape, " is no matrix");
  switch (info.role) {
    case WeightRole::Embedding:
      return weights.embedding;
    case WeightRole::Positions:
      return weights.positions;
    case WeightRole::Output:
      return weights.output;
    case WeightRole::Router:
      return layer_of(weights, info).moe.router;
    case WeightRole::SharedExpertGate:
      return layer_of(weights, info).moe.shared_gate;
    default:
      return linear_of(layer_of(weights, info), info).weight;
  }
}

template <typename T>
auto& vector_in(T& weights, const WeightInfo& info) {
  const auto of_norm = [&](auto& norm) -> auto& { return info.is_bias ? norm.bias : norm.weight; };
  switch (info.role) {
    case WeightRole::OutputNorm:
      return of_norm(weights.output_norm);
    case WeightRole::AttnNorm:
      return of_norm(layer_of(weights, info).attn_norm);
    case WeightRole::QNorm:
      return of_norm(layer_of(weights, info).q_norm);
    case WeightRole::KNorm:
      return of_norm(layer_of(weights, info).k_norm);
    case WeightRole::AttnPostNorm:
      return of_norm(layer_of(weights, info).attn_post_norm);
    case WeightRole::FfnNorm:
      return of_norm(layer_of(weights, info).ffn_norm);
    case WeightRole::FfnPostNorm:
      return of_norm(layer_of(weights, info).ffn_post_norm);
    case WeightRole::Output:
      return weights.output_bias;
    case WeightRole::Sinks:
      return layer_of(weights, info).sinks;
    case WeightRole::Router:
      return layer_of(weights, info).moe.router_bias;
    case WeightRole::RouterCorrection:
      return layer_of(weights, info).moe.router_correction;
    default:
      MINFER_CHECK(info.is_bias, "a weight of shape ", info.shape, " is no vector");
      return linear_of(layer_of(weights, info), info).bias;
  }
}

}  // namespace

bool WeightInfo::is_norm() const {
  constexpr WeightRole kNorms[] = {WeightRole::AttnNorm,  WeightRole::QNorm,
                                   WeightRole::KNorm,     WeightRole::AttnPostNorm,
                                   WeightRole::FfnNorm,   WeightRole::FfnPostNorm,
                                   WeightRole::OutputNorm};
  return std::ranges::find(kNorms, role) != std::end(kNorms);
}

bool WeightInfo::is_f32() const {
  return role == WeightRole::Sinks || role == WeightRole::RouterCorrection ||
         (role == WeightRole::Router && is_bias);
}

BlockInput WeightInfo::input() const {
  switch (role) {
    case WeightRole::Wq:
    case WeightRole::Wk:
    case WeightRole::Wv:
      return BlockInput::Attention;
    case WeightRole::Wo:
      return BlockInput::AttentionOutput;
    case WeightRole::WGate:
    case WeightRole::WUp:
    case WeightRole::Router:
    case WeightRole::ExpertGate:
    case WeightRole::ExpertUp:
    case WeightRole::SharedGate:
    case WeightRole::SharedUp:
    case WeightRole::SharedExpertGate:
      return BlockInput::Ffn;
    case WeightRole::WDown:
    case WeightRole::ExpertDown:
    case WeightRole::SharedDown:
      return BlockInput::FfnOutput;
    default:
      throw Error(ErrorKind::Internal, "only matrices of a block have an input");
  }
}

void for_each_weight(const ModelSpec& spec, const std::function<void(const WeightInfo&)>& visit) {
  Walk(spec, visit).run();
}

Weights empty_weights(const ModelSpec& spec) {
  Weights weights;
  weights.layers.resize(spec.layers.size());
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    weights.layers[i].moe.experts.resize(size_t(spec.layers[i].n_experts));
  }
  return weights;
}

void index_experts(Weights& weights, Backend& backend) {
  for (LayerWeights& layer : weights.layers) {
    if (!layer.moe.experts.empty()) backend.index_experts(layer.moe);
  }
}

Matrix& matrix_of(Weights& weights, const WeightInfo& info) { return matrix_in(weights, info); }
const Matrix& matrix_of(const Weights& weights, const WeightInfo& info) {
  return matrix_in(weights, info);
}
DeviceTensor& vector_of(Weights& weights, const WeightInfo& info) {
  return vector_in(weights, info);
}
const DeviceTensor& vector_of(const Weights& weights, const WeightInfo& info) {
  return vector_in(weights, info);
}

}  // namespace minfer
