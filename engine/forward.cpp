#include "engine/forward.h"

#include <cmath>
#include <utility>
#include <vector>

#include "kernels/moe.h"

namespace minfer {
namespace {

NormWeights post_norm_of(const LayerSpec& spec, const Norm& norm) {
  return {.weight = norm.weight,
          .bias = norm.bias,
          .kind = spec.has_norm_behind() ? spec.norm : NormKind::None,
          .eps = spec.norm_eps};
}

// One pass over the rows of one or more sequences: x += attention(norm(x)); x += ffn(norm(x)) for
// each block, or what its spec makes of that.
class ForwardPass {
 public:
  ForwardPass(Backend& backend, const Model& model, ForwardState& state, Batch batch)
      : b_(backend), model_(model), state_(state), batch_(batch), n_tokens_(n_rows_of(batch)) {}

  Tensor embed(std::span<const TokenId> tokens) {
    const Tensor x = rows(state_.scratch.x, model_.spec.dim);
    b_.embed(x, model_.weights.embedding, tokens);
    const float scale = model_.spec.edges.embedding_scale;
    if (scale != 1) b_.scale_and_cap(x, scale);
    if (model_.weights.positions) {
      std::vector<TokenId> positions;
      for (const SequenceRows& rows : batch_) {
        for (int64_t i = 0; i < rows.n_rows; ++i) {
          positions.push_back(narrow<TokenId>(rows.pos + i));
        }
      }
      const Tensor at = rows(state_.scratch.positions, model_.spec.dim);
      b_.embed(at, model_.weights.positions, positions);
      b_.add(x, x, at);
    }
    return x;
  }

  Tensor all_layers(std::span<const TokenId> tokens, const LayerObserver& observe) {
    const Tensor x = embed(tokens);
    layers(0, model_.spec.n_layers(), x, observe);
    return x;
  }

  // The last n_last rows of what all_layers() gives, of one sequence. Of the rows in front of them
  // the last block takes keys and values alone: nobody would read what else it made of them.
  Tensor last_rows(std::span<const TokenId> tokens, int64_t n_last) {
    MINFER_CHECK(batch_.size() == 1 && n_last >= 1 && n_last <= n_tokens_, "the last ", n_last,
                 " of ", n_tokens_);
    const int64_t last = model_.spec.n_layers() - 1, n_first = n_tokens_ - n_last;
    if (n_first < kWorthSkipping) return all_layers(tokens, {}).rows(n_first, n_last);
    const Tensor x = embed(tokens), x_last = x.rows(n_first, n_last);
    layers(0, last, x, {});
    const SequenceRows& all = batch_.front();
    const SequenceRows first = {n_first, all.pos, all.pages};
    const SequenceRows rest = {n_last, all.pos + n_first, all.pages};
    ForwardPass(b_, model_, state_, {&first, 1}).append_to_cache(last, x.rows(0, n_first));
    ForwardPass(b_, model_, state_, {&rest, 1}).layers(last, 1, x_last, {});
    return x_last;
  }

  // The residual stream in front of the last block, of which the cache has everything then.
  Tensor fill_cache(std::span<const TokenId> tokens) {
    const Tensor x = embed(tokens);
    layers(0, model_.spec.n_layers() - 1, x, {});
    append_to_cache(model_.spec.n_layers() - 1, x);
    return x;
  }

  // See add_block_experts.
  void add_experts(int64_t index, Tensor x, const NormArgs* next) {
    const LayerSpec& spec = model_.spec.layer(index);
    const LayerWeights& w = weights(index);
    b_.add_experts({.x = x,
                    .input = ffn_input(index, x),
                    .weights = w.moe,
                    .spec = spec,
                    .post_norm = post_norm_of(spec, w.ffn_post_norm),
                    .scale = spec.residual_scale,
                    .next = next});
  }

  // See block_input.
  Tensor input(int64_t index, BlockInput which, Tensor x) {
    switch (which) {
      case BlockInput::Attention:
        return attention_input(index, x);
      case BlockInput::AttentionOutput:
        return attended(index, x);
      case BlockInput::Ffn:
        return ffn_input(index, x);
      case BlockInput::FfnOutput:
        break;
    }
    return ffn_hidden(index, x);
  }

 private:
  // With fewer rows in front of the last ones, reading wk and wv once more for them would cost more
  // than the rest of the block does for them: about what a card's products take at a time.
  static constexpr int64_t kWorthSkipping = 16;

  void layers(int64_t first, int64_t n, Tensor x, const LayerObserver& observe) {
    for (int64_t i = first; i < first + n; ++i) {
      add_attention(i, x);
      if (i + 1 == first + n) {
        add_ffn(i, x, nullptr);
      } else {
        const NormArgs next = attention_norm(i + 1, x);
        add_ffn(i, x, &next);
        is_normed_ = true;
      }
      if (observe) observe(i, x);
      if (state_.after_block) state_.after_block();
    }
  }

  // Leaves the input of the feed-forward network's norm, or what follows it, as normed() expects.
  void add_attention(int64_t index, Tensor x) {
    const LayerSpec& spec = model_.spec.layer(index);
    const Tensor input = attended(index, x);
    const NormArgs next = ffn_norm(index, x);
    if (spec.parallel_residual) {
      // Of x before attention's output is added. A shared norm is still there.
      if (!spec.shared_norm) b_.norm(next);
      add_block_output(b_, model_, index, BlockInput::AttentionOutput, x, input);
    } else {
      add_block_output(b_, model_, index, BlockInput::AttentionOutput, x, input, &next);
    }
    is_normed_ = true;
  }

  void add_ffn(int64_t index, Tensor x, const NormArgs* next) {
    if (model_.spec.layer(index).has_experts()) return add_experts(index, x, next);
    add_block_output(b_, model_, index, BlockInput::FfnOutput, x, ffn_hidden(index, x), next);
  }

  // What later rows need of these.
  void append_to_cache(int64_t index, Tensor x) {
    const LayerSpec& spec = model_.spec.layer(index);
    const LayerWeights& w = weights(index);
    const Tensor k = heads(state_.scratch.k, spec.n_kv_heads, spec);
    const Tensor v = heads(state_.scratch.v, spec.n_kv_heads, spec);
    const Tensor k_rows = rows(state_.scratch.k, spec.kv_dim());
    const Tensor v_rows = rows(state_.scratch.v, spec.kv_dim());
    const Matmul calls[] = {{k_rows, w.wk.weight}, {v_rows, w.wv.weight}};
    b_.matmuls(attention_input(index, x), calls);
    if (w.wk.bias) b_.add_bias(k_rows, k_rows, w.wk.bias);
    if (w.wv.bias) b_.add_bias(v_rows, v_rows, w.wv.bias);
    b_.norm_heads(k, spec.qk_norm, w.k_norm.weight, spec.norm_eps);
    if (const Tensor table = rope_table(spec)) b_.rope(k, table, batch_);
    b_.kv_append(cache(index), k, v, batch_);
  }

  NormArgs attention_norm(int64_t index, Tensor x) const {
    return norm_of(model_.spec.layer(index), x, weights(index).attn_norm);
  }
  NormArgs ffn_norm(int64_t index, Tensor x) const {
    const LayerSpec& spec = model_.spec.layer(index);
    const LayerWeights& w = weights(index);
    return norm_of(spec, x, spec.shared_norm ? w.attn_norm : w.ffn_norm);
  }
  // In front of a matmul that has no norm before it, x is rounded to the activation type.
  NormArgs norm_of(const LayerSpec& spec, Tensor x, const Norm& norm) const {
    return {.out = rows(state_.scratch.normed, model_.spec.dim),
            .x = x,
            .weight = norm.weight,
            .bias = norm.bias,
            .kind = spec.has_norm_before() ? spec.norm : NormKind::None,
            .eps = spec.norm_eps};
  }
  Tensor normed(const NormArgs& args) {
    if (!std::exchange(is_normed_, false)) b_.norm(args);
    return args.out;
  }
  Tensor attention_input(int64_t index, Tensor x) { return normed(attention_norm(index, x)); }
  Tensor ffn_input(int64_t index, Tensor x) { return normed(ffn_norm(index, x)); }

  Tensor attended(int64_t index, Tensor x) {
    const LayerSpec& spec = model_.spec.layer(index);
    const LayerWeights& w = weights(index);
    const Scratch& s = state_.scratch;
    const Tensor q = heads(s.q, spec.n_heads, spec);     // [n_tokens, n_heads, head_dim]
    const Tensor k = heads(s.k, spec.n_kv_heads, spec);  // [n_tokens, n_kv_heads, head_dim]
    const Tensor v = heads(s.v, spec.n_kv_heads, spec);
    const Tensor out = heads(s.attended, spec.n_heads, spec);
    const QkvArgs qkv{.x = attention_input(index, x),
                      .q = q,
                      .k = k,
                      .v = v,
                      .wq = w.wq,
                      .wk = w.wk,
                      .wv = w.wv,
                      .norm = {.kind = spec.qk_norm,
                               .q_weight = w.q_norm.weight,
                               .k_weight = w.k_norm.weight,
                               .eps = spec.norm_eps}};
    b_.qkv_append(qkv, cache(index), rope_table(spec), batch_);
    b_.attention({.out = out,
                  .q = q,
                  .cache = cache(index),
                  .batch = batch_,
                  .scale = spec.score_scale(),
                  .window = spec.window,
                  .softcap = spec.attn_softcap,
                  .sinks = w.sinks});
    return rows(s.attended, spec.q_dim());
  }

  Tensor ffn_hidden(int64_t index, Tensor x) {
    const LayerSpec& spec = model_.spec.layer(index);
    const LayerWeights& w = weights(index);
    const Tensor hidden = rows(state_.scratch.hidden, spec.ffn_dim);  // [n_tokens, ffn_dim]
    b_.ffn_hidden({.out = hidden,
                   .x = ffn_input(index, x),
                   .gate = spec.gated ? &w.w_gate : nullptr,
                   .up = w.w_up,
                   .activation = spec.activation});
    return hidden;
  }

  const LayerWeights& weights(int64_t index) const {
    return model_.weights.layers[static_cast<size_t>(index)];
  }
  KvLayer& cache(int64_t index) { return state_.kv.layers[static_cast<size_t>(index)]; }
  Tensor rope_table(const LayerSpec& spec) const {
    if (spec.rope < 0) return {};
    return state_.rope_tables.at(static_cast<size_t>(spec.rope));
  }
  // [n_tokens, width] in a buffer whose rows may be wider.
  Tensor rows(const DeviceTensor& buffer, int64_t width) const {
    return {buffer.view().data, buffer.view().dtype, {n_tokens_, width}};
  }
  Tensor heads(const DeviceTensor& buffer, int64_t n_heads, const LayerSpec& spec) const {
    return rows(buffer, n_heads * spec.head_dim).reshaped({n_tokens_, n_heads, spec.head_dim});
  }

  Backend& b_;
  const Model& model_;
  ForwardState& state_;
  Batch batch_;
  int64_t n_tokens_;
  bool is_normed_ = false;  // the operation before has made the norm that comes next
};

}  // namespace

void require_computable(const ModelSpec& spec) {
  for (const LayerSpec& s : spec.layers) {
    const bool has_experts = s.has_experts();
    // The neutral spec with the fields that are handled above: `s` differs if it sets any other.
    LayerSpec handled = {.n_heads = s.n_heads,
                         .n_kv_heads = s.n_kv_heads,
                         .head_dim = s.head_dim,
                         .ffn_dim = s.ffn_dim,
                         .norm = s.norm,
                         .norm_eps = s.norm_eps,
                         .norm_places = s.norm_places,
                         .norm_bias = s.norm_bias,
                         .parallel_residual = s.parallel_residual,
                         .shared_norm = s.shared_norm,
                         .residual_scale = s.residual_scale,
                         .qkv_bias = s.qkv_bias,
                         .attn_out_bias = s.attn_out_bias,
                         .ffn_bias = s.ffn_bias,
                         .qk_norm = s.qk_norm,
                         .rope = s.rope,
                         .attn_scale = s.attn_scale,
                         .attn_softcap = s.attn_softcap,
                         .window = s.window,
                         .attn_sinks = s.attn_sinks,
                         .activation = s.activation,
                         .gated = s.gated};
    handled.take_experts_of(s);
    for_each_field(s, std::as_const(handled),
                   [](const char* name, const auto& asked, const auto& done) {
                     MINFER_REQUIRE(Input, asked == done, "a block with ", name, ": not supported");
                   });
    const bool is_plainly_parallel = s.parallel_residual && s.norm_places == NormPlaces::Before;
    MINFER_REQUIRE(Input, !s.shared_norm || is_plainly_parallel,
                   "a block with shared_norm that is not parallel: not supported");
    MINFER_REQUIRE(Input, s.norm != NormKind::None, "a block without norms: not supported");
    MINFER_REQUIRE(Input, !has_experts || s.gated, "experts without a gate: not supported");
    const bool is_clamped = s.activation == Activation::ClampedSwiGlu;
    MINFER_REQUIRE(Input, !has_experts || is_clamped || s.activation == Activation::Silu,
                   "experts with another activation than silu: not supported");
    MINFER_REQUIRE(Input, !is_clamped || (has_experts && s.swiglu_limit > 0),
                   "a clamped gate without experts or limit: not supported");
    MINFER_REQUIRE(Input, s.shared_ffn_dim == 0 || !(is_clamped || s.ffn_bias),
                   "a shared expert with a clamped gate or biases: not supported");
    MINFER_REQUIRE(Input,
                   !has_experts || (s.n_active_experts >= 1 && s.n_active_experts <= s.n_experts),
                   s.n_active_experts, " of ", s.n_experts, " experts: not supported");
  }
  MINFER_REQUIRE(Input, spec.edges.output_norm != NormKind::None,
                 "logits without a norm: not supported");
}

Tensor embed_tokens(Backend& backend, const Model& model, ForwardState& state,
                    std::span<const TokenId> tokens, Batch batch) {
  return ForwardPass(backend, model, state, batch).embed(tokens);
}

Tensor block_input(Backend& backend, const Model& model, ForwardState& state, int64_t layer,
                   BlockInput which, Tensor x, Batch batch) {
  return ForwardPass(backend, model, state, batch).input(layer, which, x);
}

void add_block_experts(Backend& backend, const Model& model, ForwardState& state, int64_t layer,
                       Tensor x, Batch batch) {
  ForwardPass(backend, model, state, batch).add_experts(layer, x, nullptr);
}

void add_block_output(Backend& backend, const Model& model, int64_t layer, BlockInput which,
                      Tensor x, Tensor input, const NormArgs* next) {
  const bool is_ffn = which == BlockInput::FfnOutput;
  MINFER_CHECK(is_ffn || which == BlockInput::AttentionOutput, "block input ", int(which));
  const LayerSpec& spec = model.spec.layer(layer);
  const LayerWeights& w = model.weights.layers[static_cast<size_t>(layer)];
  const Norm& post_norm = is_ffn ? w.ffn_post_norm : w.attn_post_norm;
  backend.add_to_residual({.x = x,
                           .input = input,
                           .linear = is_ffn ? w.w_down : w.wo,
                           .post_norm = post_norm_of(spec, post_norm),
                           .scale = spec.residual_scale,
                           .next = next});
}

Tensor forward(Backend& backend, const Model& model, ForwardState& state,
               std::span<const TokenId> tokens, Batch batch, const LayerObserver& observe) {
  return ForwardPass(backend, model, state, batch).all_layers(tokens, observe);
}

Tensor forward_last(Backend& backend, const Model& model, ForwardState& state,
                    std::span<const TokenId> tokens, const SequenceRows& rows, int64_t n_last) {
  return ForwardPass(backend, model, state, {&rows, 1}).last_rows(tokens, n_last);
}

Tensor forward_to_cache(Backend& backend, const Model& model, ForwardState& state,
                        std::span<const TokenId> tokens, const SequenceRows& rows) {
  return ForwardPass(backend, model, state, {&rows, 1}).fill_cache(tokens);
}

void output_logits(Backend& backend, const Model& model, ForwardState& state, Tensor x,
                   Tensor logits) {
  const Tensor normed = state.scratch.normed.view().rows(0, x.shape[0]);
  const Weights& w = model.weights;
  const EdgeSpec& edges = model.spec.edges;
  backend.norm({.out = normed,
                .x = x,
                .weight = w.output_norm.weight,
                .bias = w.output_norm.bias,
                .kind = edges.output_norm,
                .eps = edges.output_norm_eps});
  backend.matmul_of_ranks(logits, normed, w.output_matrix(), model.spec.output_begin);
  if (w.output_bias) backend.add_bias(logits, logits, w.output_bias);
  if (edges.logit_scale != 1 || edges.logit_softcap > 0) {
    backend.scale_and_cap(logits, edges.logit_scale, edges.logit_softcap);
  }
}

}  // namespace minfer
