#include "engine/forward.h"

#include <cmath>
#include <numeric>
#include <utility>
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

// Rows of a pass that follow one another in one sequence.
struct Run {
  int64_t begin, n_tokens;  // rows
  int64_t pos;              // of the first one
};

struct Linear {
  Product product;
  Tensor bias;  // may be null
};

// x wᵀ + bias for each
void linear(Backend& backend, Tensor x, std::initializer_list<Linear> layers) {
  std::vector<Product> products;
  for (const Linear& layer : layers) products.push_back(layer.product);
  backend.matmuls(x, products);
  for (const auto& [product, bias] : layers) {
    if (bias) backend.add_bias(product.out, product.out, bias);
  }
}

// One pass over the rows of one or more sequences. Both families are
//   x += attention(norm(x)); x += ffn(norm(x))
// with RMSNorm, RoPE and SwiGLU (Llama) or LayerNorm, learned positions and GELU (GPT-2).
class ForwardPass {
 public:
  // One sequence.
  ForwardPass(Backend& backend, const Model& model, ForwardState& state, int64_t n_tokens,
              int64_t pos)
      : ForwardPass(backend, model, state, std::vector<Run>{{0, n_tokens, pos}}) {}
  // Sequences after one another, which use the same cache in turn: with more than one, each begins
  // at position 0.
  ForwardPass(Backend& backend, const Model& model, ForwardState& state, std::vector<Run> runs)
      : b_(backend),
        model_(model),
        state_(state),
        runs_(std::move(runs)),
        n_tokens_(runs_.back().begin + runs_.back().n_tokens) {}

  Tensor embed(std::span<const TokenId> tokens) {
    const Tensor x = rows(state_.scratch.x);
    b_.embed(x, model_.weights.embedding, tokens);
    if (model_.weights.positions) {
      std::vector<TokenId> positions(tokens.size());
      for (const Run& run : runs_) {
        const auto first = positions.begin() + run.begin;
        std::iota(first, first + run.n_tokens, narrow<TokenId>(run.pos));
      }
      const Tensor at = rows(state_.scratch.positions);
      b_.embed(at, model_.weights.positions, positions);
      b_.add(x, x, at);
    }
    return x;
  }

  Tensor all_layers(std::span<const TokenId> tokens, const LayerObserver& observe) {
    const Tensor x = embed(tokens);
    layers(0, model_.config.n_layers, x, observe);
    return x;
  }

  // The last n_last rows of what all_layers() gives, of one sequence. Of the rows in front of them
  // the last block takes keys and values alone: nobody would read what else it made of them.
  Tensor last_rows(std::span<const TokenId> tokens, int64_t n_last) {
    MINFER_CHECK(n_last >= 1 && n_last <= n_tokens_, "the last ", n_last, " of ", n_tokens_);
    const int64_t last = model_.config.n_layers - 1, n_first = n_tokens_ - n_last;
    if (n_first < kWorthSkipping) return all_layers(tokens, {}).rows(n_first, n_last);
    const Tensor x = embed(tokens), x_last = x.rows(n_first, n_last);
    layers(0, last, x, {});
    const int64_t pos = runs_.front().pos;
    ForwardPass(b_, model_, state_, n_first, pos).append_to_cache(last, x.rows(0, n_first));
    ForwardPass(b_, model_, state_, n_last, pos + n_first).layers(last, 1, x_last, {});
    return x_last;
  }

  // The residual stream in front of the last block, of which the cache has everything then.
  Tensor fill_cache(std::span<const TokenId> tokens) {
    const Tensor x = embed(tokens);
    layers(0, model_.config.n_layers - 1, x, {});
    append_to_cache(model_.config.n_layers - 1, x);
    return x;
  }

  // See block_input.
  Tensor input(int64_t index, BlockInput which, Tensor x) {
    const auto i = static_cast<size_t>(index);
    const LayerWeights& layer = model_.weights.layers[i];
    switch (which) {
      case BlockInput::Attention:
        return attention_input(x, layer);
      case BlockInput::AttentionOutput:
        return attended(x, layer, state_.kv.layers[i]);
      case BlockInput::Ffn:
        return ffn_input(x, layer);
      case BlockInput::FfnOutput:
        break;
    }
    return ffn_hidden(x, layer);
  }

 private:
  // With fewer rows in front of the last ones, reading wk and wv once more for them would cost more
  // than the rest of the block does for them: about what a card's products take at a time.
  static constexpr int64_t kWorthSkipping = 16;

  void layers(int64_t first, int64_t n, Tensor x, const LayerObserver& observe) {
    for (int64_t i = first; i < first + n; ++i) {
      for (const BlockInput half : {BlockInput::AttentionOutput, BlockInput::FfnOutput}) {
        add_block_output(b_, model_.weights.layers[static_cast<size_t>(i)], half, x,
                         input(i, half, x));
      }
      if (observe) observe(i, x);
      if (state_.after_block) state_.after_block();
    }
  }

  // What later rows need of these, of one sequence.
  void append_to_cache(int64_t index, Tensor x) {
    const auto i = static_cast<size_t>(index);
    const LayerWeights& layer = model_.weights.layers[i];
    const Tensor k = heads(state_.scratch.k, model_.config.n_kv_heads);
    const Tensor v = heads(state_.scratch.v, model_.config.n_kv_heads);
    linear(b_, attention_input(x, layer),
           {{{rows(state_.scratch.k), layer.wk}, layer.bk},
            {{rows(state_.scratch.v), layer.wv}, layer.bv}});
    if (state_.rope_table) b_.rope(k, state_.rope_table, runs_.front().pos);
    b_.kv_append(state_.kv.layers[i], k, v, runs_.front().pos);
  }

  Tensor attention_input(Tensor x, const LayerWeights& layer) {
    const Tensor normed = rows(state_.scratch.normed);
    norm(b_, model_.config, normed, x, layer.attn_norm, layer.attn_norm_bias);
    return normed;
  }

  Tensor attended(Tensor x, const LayerWeights& layer, KvLayer& cache) {
    const Scratch& s = state_.scratch;
    const Tensor normed = attention_input(x, layer);

    const Tensor q = heads(s.q, model_.config.n_heads);     // [n_tokens, n_heads, head_dim]
    const Tensor k = heads(s.k, model_.config.n_kv_heads);  // [n_tokens, n_kv_heads, head_dim]
    const Tensor v = heads(s.v, model_.config.n_kv_heads);
    const Tensor out = heads(s.attended, model_.config.n_heads);
    const float scale = attention_scale(model_.config);
    if (runs_.size() == 1) {
      const int64_t pos = runs_.front().pos;
      b_.append_products(cache, normed, {q, layer.wq, layer.bq}, {k, layer.wk, layer.bk},
                         {v, layer.wv, layer.bv}, state_.rope_table, pos);
      b_.attention(out, q, cache, pos, scale);
      return rows(s.attended);
    }
    linear(b_, normed,
           {{{rows(s.q), layer.wq}, layer.bq},
            {{rows(s.k), layer.wk}, layer.bk},
            {{rows(s.v), layer.wv}, layer.bv}});
    for (const Run& run : runs_) {  // which use the cache in turn
      const auto of_run = [&](Tensor all) { return all.rows(run.begin, run.n_tokens); };
      b_.rope_append(cache, of_run(q), of_run(k), of_run(v), state_.rope_table, run.pos);
      b_.attention(of_run(out), of_run(q), cache, run.pos, scale);
    }
    return rows(s.attended);
  }

  Tensor ffn_input(Tensor x, const LayerWeights& layer) {
    const Tensor normed = rows(state_.scratch.normed);
    norm(b_, model_.config, normed, x, layer.ffn_norm, layer.ffn_norm_bias);
    return normed;
  }

  Tensor ffn_hidden(Tensor x, const LayerWeights& layer) {
    const Scratch& s = state_.scratch;
    const Tensor normed = ffn_input(x, layer), up = rows(s.up);  // [n_tokens, ffn_dim]
    if (model_.config.is_llama()) {
      b_.gated_matmul(up, normed, layer.w_gate, layer.b_gate, layer.w_up, layer.b_up, rows(s.gate));
    } else {
      linear(b_, normed, {{{up, layer.w_up}, {}}});
      b_.bias_gelu(up, up, layer.b_up, model_.config.gelu);
    }
    return up;
  }

  Tensor rows(const DeviceTensor& buffer) const { return buffer.view().rows(0, n_tokens_); }
  Tensor heads(const DeviceTensor& buffer, int64_t n_heads) const {
    return rows(buffer).reshaped({n_tokens_, n_heads, model_.config.head_dim});
  }

  Backend& b_;
  const Model& model_;
  ForwardState& state_;
  std::vector<Run> runs_;
  int64_t n_tokens_;
};

}  // namespace

float attention_scale(const ModelConfig& config) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(config.head_dim)));
}

Tensor embed_tokens(Backend& backend, const Model& model, ForwardState& state,
                    std::span<const TokenId> tokens, int64_t pos) {
  return ForwardPass(backend, model, state, std::ssize(tokens), pos).embed(tokens);
}

Tensor block_input(Backend& backend, const Model& model, ForwardState& state, int64_t layer,
                   BlockInput which, Tensor x, int64_t pos) {
  return ForwardPass(backend, model, state, x.shape[0], pos).input(layer, which, x);
}

void add_block_output(Backend& backend, const LayerWeights& layer, BlockInput which, Tensor x,
                      Tensor input) {
  const bool is_ffn = which == BlockInput::FfnOutput;
  MINFER_CHECK(is_ffn || which == BlockInput::AttentionOutput, "block input ", int(which));
  linear(backend, input,
         {{{x, is_ffn ? layer.w_down : layer.wo, /*accumulate=*/true},
           is_ffn ? layer.b_down.view() : layer.bo.view()}});
}

Tensor forward(Backend& backend, const Model& model, ForwardState& state,
               std::span<const TokenId> tokens, int64_t pos, const LayerObserver& observe) {
  return ForwardPass(backend, model, state, std::ssize(tokens), pos).all_layers(tokens, observe);
}

Tensor forward_last(Backend& backend, const Model& model, ForwardState& state,
                    std::span<const TokenId> tokens, int64_t pos, int64_t n_last) {
  return ForwardPass(backend, model, state, std::ssize(tokens), pos).last_rows(tokens, n_last);
}

Tensor forward_to_cache(Backend& backend, const Model& model, ForwardState& state,
                        std::span<const TokenId> tokens, int64_t pos) {
  return ForwardPass(backend, model, state, std::ssize(tokens), pos).fill_cache(tokens);
}

Tensor forward_sequences(Backend& backend, const Model& model, ForwardState& state,
                         std::span<const TokenId> tokens, std::span<const int64_t> lengths) {
  std::vector<Run> runs;
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    runs.push_back({begin, length, 0});
    begin += length;
  }
  return ForwardPass(backend, model, state, std::move(runs)).all_layers(tokens, {});
}

void output_logits(Backend& backend, const Model& model, ForwardState& state, Tensor x,
                   Tensor logits) {
  const Tensor normed = state.scratch.normed.view().rows(0, x.shape[0]);
  const Weights& w = model.weights;
  norm(backend, model.config, normed, x, w.output_norm, w.output_norm_bias);
  backend.matmul(logits, normed, w.output_matrix());
}

}  // namespace minfer
