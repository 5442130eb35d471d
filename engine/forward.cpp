#include "engine/forward.h"

#include <cmath>
#include <numeric>
#include <vector>

namespace minfer {
namespace {

void norm(Backend& backend, const ModelConfig& config, Tensor out, Tensor x, Tensor weight,
          Tensor bias) {
  if (config.is_llama()) {
    backend.rms_norm(out, x, weight, config.norm_eps);
  } else {
    backend.layer_norm(out, x, weight, bias, config.norm_eps);
  }
}

// One pass of n_tokens rows. Both families are
//   x += attention(norm(x)); x += ffn(norm(x))
// with RMSNorm, RoPE and SwiGLU (Llama) or LayerNorm, learned positions and GELU (GPT-2).
class ForwardPass {
 public:
  ForwardPass(Backend& backend, const Model& model, ForwardState& state, int64_t n_tokens,
              int64_t pos)
      : b_(backend),
        config_(model.config),
        weights_(model.weights),
        state_(state),
        n_tokens_(n_tokens),
        pos_(pos) {}

  Tensor embed(std::span<const TokenId> tokens) {
    const Tensor x = rows(state_.scratch.x);
    b_.embed(x, weights_.embedding, tokens);
    if (weights_.positions) {
      std::vector<TokenId> positions(tokens.size());
      std::iota(positions.begin(), positions.end(), narrow<TokenId>(pos_));
      const Tensor at = rows(state_.scratch.normed);
      b_.embed(at, weights_.positions, positions);
      b_.add(x, x, at);
    }
    return x;
  }

  void attention_block(Tensor x, const LayerWeights& layer, KvLayer& cache) {
    const Scratch& s = state_.scratch;
    const Tensor normed = rows(s.normed);
    norm(b_, config_, normed, x, layer.attn_norm, layer.attn_norm_bias);

    const Tensor q = heads(s.q, config_.n_heads);     // [n_tokens, n_heads, head_dim]
    const Tensor k = heads(s.k, config_.n_kv_heads);  // [n_tokens, n_kv_heads, head_dim]
    const Tensor v = heads(s.v, config_.n_kv_heads);
    linear(normed, {{{rows(s.q), layer.wq}, layer.bq},
                    {{rows(s.k), layer.wk}, layer.bk},
                    {{rows(s.v), layer.wv}, layer.bv}});
    if (state_.rope_table) {
      b_.rope(q, state_.rope_table, pos_);
      b_.rope(k, state_.rope_table, pos_);
    }
    b_.kv_append(cache, k, v, pos_);

    const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(config_.head_dim)));
    b_.attention(heads(s.attended, config_.n_heads), q, cache, pos_, scale);
    linear(rows(s.attended), {{{x, layer.wo, /*accumulate=*/true}, layer.bo}});
  }

  void ffn_block(Tensor x, const LayerWeights& layer) {
    const Scratch& s = state_.scratch;
    const Tensor normed = rows(s.normed), up = rows(s.up);  // [n_tokens, dim], [n_tokens, ffn_dim]
    norm(b_, config_, normed, x, layer.ffn_norm, layer.ffn_norm_bias);
    if (config_.is_llama()) {
      const Tensor gate = rows(s.gate);  // [n_tokens, ffn_dim]
      linear(normed, {{{gate, layer.w_gate}, layer.b_gate}, {{up, layer.w_up}, layer.b_up}});
      b_.swiglu(up, gate, up);
    } else {
      linear(normed, {{{up, layer.w_up}, {}}});
      b_.bias_gelu(up, up, layer.b_up, config_.gelu);
    }
    linear(up, {{{x, layer.w_down, /*accumulate=*/true}, layer.b_down}});
  }

 private:
  struct Linear {
    Product product;
    Tensor bias;  // may be null
  };

  // x wᵀ + bias for each
  void linear(Tensor x, std::initializer_list<Linear> layers) {
    std::vector<Product> products;
    for (const auto& [product, bias] : layers) {
      if (state_.observe_matmul) state_.observe_matmul(product.w, x);
      products.push_back(product);
    }
    b_.matmuls(x, products);
    for (const auto& [product, bias] : layers) {
      if (bias) b_.add_bias(product.out, product.out, bias);
    }
  }

  Tensor rows(const DeviceTensor& buffer) const { return buffer.view().rows(0, n_tokens_); }
  Tensor heads(const DeviceTensor& buffer, int64_t n_heads) const {
    return rows(buffer).reshaped({n_tokens_, n_heads, config_.head_dim});
  }

  Backend& b_;
  const ModelConfig& config_;
  const Weights& weights_;
  ForwardState& state_;
  int64_t n_tokens_, pos_;
};

}  // namespace

Tensor embed_tokens(Backend& backend, const Model& model, ForwardState& state,
                    std::span<const TokenId> tokens, int64_t pos) {
  return ForwardPass(backend, model, state, std::ssize(tokens), pos).embed(tokens);
}

void forward_layer(Backend& backend, const Model& model, ForwardState& state, int64_t layer,
                   Tensor x, int64_t pos) {
  ForwardPass pass(backend, model, state, x.shape[0], pos);
  const auto i = static_cast<size_t>(layer);
  pass.attention_block(x, model.weights.layers[i], state.kv.layers[i]);
  pass.ffn_block(x, model.weights.layers[i]);
}

Tensor forward(Backend& backend, const Model& model, ForwardState& state,
               std::span<const TokenId> tokens, int64_t pos, const LayerObserver& observe) {
  const Tensor x = embed_tokens(backend, model, state, tokens, pos);  // [n_tokens, dim]
  for (int64_t i = 0; i < model.config.n_layers; ++i) {
    forward_layer(backend, model, state, i, x, pos);
    if (observe) observe(i, x);
  }
  return x;
}

void output_logits(Backend& backend, const Model& model, Tensor x, Tensor logits) {
  const Weights& w = model.weights;
  norm(backend, model.config, x, x, w.output_norm, w.output_norm_bias);
  backend.matmul(logits, x, w.output_matrix());
}

}  // namespace minfer
