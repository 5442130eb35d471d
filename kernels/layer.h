#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/backend.h"

// One block of a decoder: what it computes, as data, and its weights.
namespace minfer {

// Where the norms of attention and of the feed-forward network are: before them, behind them
// (before the sum with the residual stream), or both.
enum class NormPlaces { Before, Behind, Both };

// How a router turns its logits into scores: over all experts, or each by itself.
enum class RouterScore { Softmax, Sigmoid };

// Every field but the sizes has a neutral default: that of a Llama block without biases.
//   x += attention(norm(x)); x += ffn(norm(x))
struct LayerSpec {
  int64_t n_heads = 0, n_kv_heads = 0;
  int64_t head_dim = 0;  // not always dim / n_heads
  int64_t ffn_dim = 0;   // of one expert, where there are experts

  NormKind norm = NormKind::Rms;
  float norm_eps = 0;
  NormPlaces norm_places = NormPlaces::Before;
  bool norm_bias = true;           // of a LayerNorm
  bool parallel_residual = false;  // x += attention(norm(x)) + ffn(norm(x))
  bool shared_norm = false;        // of both halves, if they are parallel: attention's
  float residual_scale = 1;        // of what is added to x

  bool qkv_bias = false, attn_out_bias = false, ffn_bias = false;
  QkNorm qk_norm = QkNorm::None;  // of queries and keys, before the rotation
  int rope = -1;                  // index of the rotation table; -1: no rotation
  float attn_scale = 0;           // of the scores; 0: 1 / sqrt(head_dim)
  float attn_softcap = 0;         // c: scores become c tanh(score / c); 0: none
  int64_t window = 0;             // positions that a query sees, its own included; 0: all
  bool attn_sinks = false;        // one more score for each head: AttentionArgs

  Activation activation = Activation::Silu;
  bool gated = true;                         // down(act(gate x) * (up x)), else down(act(up x))
  float swiglu_alpha = 0, swiglu_limit = 0;  // of ClampedSwiGlu

  // A mixture of experts in place of the feed-forward network, if n_experts > 0: kernels/moe.h.
  int64_t n_experts = 0, n_active_experts = 0;
  int64_t shared_ffn_dim = 0;  // of the expert that every row goes through; 0: none
  bool shared_gate = false;    // its output is multiplied by a sigmoid of the row
  RouterScore router_score = RouterScore::Softmax;
  bool router_bias = false;           // of its logits
  bool router_correction = false;     // the choice is by scores with a correction added
  bool renormalizes_experts = false;  // the chosen scores are divided by their sum
  float router_scale = 1;             // of the experts' weights

  bool has_experts() const { return n_experts > 0; }
  // Copies the fields of s that describe its experts, and of these only what s uses. Code that
  // handles experts lists the fields that it handles with it, and compares the whole with s.
  void take_experts_of(const LayerSpec& s);
  // Whether the feed-forward network, or each expert, is SwiGLU, clamped or not.
  bool has_swiglu() const {
    return gated && (activation == Activation::Silu || activation == Activation::ClampedSwiGlu);
  }
  SwiGluClamp swiglu_clamp() const {
    if (activation != Activation::ClampedSwiGlu) return {};
    return {swiglu_alpha, swiglu_limit};
  }
  int64_t q_dim() const { return n_heads * head_dim; }
  int64_t kv_dim() const { return n_kv_heads * head_dim; }
  // Whether attention and the feed-forward network have a norm before them, and one behind them.
  bool has_norm_before() const { return norm_places != NormPlaces::Behind; }
  bool has_norm_behind() const { return norm_places != NormPlaces::Before; }
  float score_scale() const {
    return attn_scale > 0 ? attn_scale
                          : static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim)));
  }

  bool operator==(const LayerSpec&) const = default;
};

// Calls visit(name, field of a, same field of b) for each field of two specs. A new field does not
// compile until it is listed here.
template <typename Spec, typename Visitor>
void for_each_field(Spec& a, Spec& b, Visitor visit) {
  auto& [n_heads, n_kv_heads, head_dim, ffn_dim, norm, norm_eps, norm_places, norm_bias,
         parallel_residual, shared_norm, residual_scale, qkv_bias, attn_out_bias, ffn_bias, qk_norm,
         rope, attn_scale, attn_softcap, window, attn_sinks, activation, gated, swiglu_alpha,
         swiglu_limit, n_experts, n_active_experts, shared_ffn_dim, shared_gate, router_score,
         router_bias, router_correction, renormalizes_experts, router_scale] = a;
  visit("n_heads", n_heads, b.n_heads);
  visit("n_kv_heads", n_kv_heads, b.n_kv_heads);
  visit("head_dim", head_dim, b.head_dim);
  visit("ffn_dim", ffn_dim, b.ffn_dim);
  visit("norm", norm, b.norm);
  visit("norm_eps", norm_eps, b.norm_eps);
  visit("norm_places", norm_places, b.norm_places);
  visit("norm_bias", norm_bias, b.norm_bias);
  visit("parallel_residual", parallel_residual, b.parallel_residual);
  visit("shared_norm", shared_norm, b.shared_norm);
  visit("residual_scale", residual_scale, b.residual_scale);
  visit("qkv_bias", qkv_bias, b.qkv_bias);
  visit("attn_out_bias", attn_out_bias, b.attn_out_bias);
  visit("ffn_bias", ffn_bias, b.ffn_bias);
  visit("qk_norm", qk_norm, b.qk_norm);
  visit("rope", rope, b.rope);
  visit("attn_scale", attn_scale, b.attn_scale);
  visit("attn_softcap", attn_softcap, b.attn_softcap);
  visit("window", window, b.window);
  visit("attn_sinks", attn_sinks, b.attn_sinks);
  visit("activation", activation, b.activation);
  visit("gated", gated, b.gated);
  visit("swiglu_alpha", swiglu_alpha, b.swiglu_alpha);
  visit("swiglu_limit", swiglu_limit, b.swiglu_limit);
  visit("n_experts", n_experts, b.n_experts);
  visit("n_active_experts", n_active_experts, b.n_active_experts);
  visit("shared_ffn_dim", shared_ffn_dim, b.shared_ffn_dim);
  visit("shared_gate", shared_gate, b.shared_gate);
  visit("router_score", router_score, b.router_score);
  visit("router_bias", router_bias, b.router_bias);
  visit("router_correction", router_correction, b.router_correction);
  visit("renormalizes_experts", renormalizes_experts, b.renormalizes_experts);
  visit("router_scale", router_scale, b.router_scale);
}

// What a model computes before and after its blocks.
struct EdgeSpec {
  bool learned_positions = false;  // added to the embedding
  float embedding_scale = 1;
  NormKind output_norm = NormKind::Rms;
  float output_norm_eps = 0;
  bool output_norm_bias = true;  // of a LayerNorm
  bool output_bias = false;      // of the logits
  float logit_scale = 1;
  float logit_softcap = 0;  // c: logits become c tanh(logit / c); 0: none

  bool operator==(const EdgeSpec&) const = default;
};

// Vectors [n]; the bias is null where there is none.
struct Norm {
  DeviceTensor weight, bias;
};

// A feed-forward network with a gate: down(act(gate x) * (up x)).
struct Expert {
  Linear w_gate, w_up, w_down;
};

// The weights of a mixture of experts.
struct MoeWeights {
  Matrix router;                                // [n_experts, dim]
  DeviceTensor router_bias, router_correction;  // [n_experts] F32, or null
  std::vector<Expert> experts;
  Expert shared;       // null where there is none
  Matrix shared_gate;  // [1, dim], or null
  DeviceTensor index;  // where the experts' matrices are: Backend::index_experts
};

// The weights of one block; what it does not have is null. Shapes: for_each_weight
// (models/weight_list.h).
struct LayerWeights {
  Norm attn_norm;
  Linear wq, wk, wv, wo;
  Norm q_norm, k_norm;
  DeviceTensor sinks;   // [n_heads] F32
  Norm attn_post_norm;  // of attention's output
  Norm ffn_norm;
  Linear w_gate, w_up, w_down;
  Norm ffn_post_norm;  // of the feed-forward network's output
  MoeWeights moe;
};

}  // namespace minfer
