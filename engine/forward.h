#pragma once

#include <functional>
#include <span>

#include "engine/kv_cache.h"
#include "engine/scratch.h"
#include "models/model.h"

namespace minfer {

// Called with each matrix that is about to be multiplied, but the output layer, and its input
// [n_tokens, in].
using MatmulObserver = std::function<void(const Matrix& w, Tensor x)>;

// What a forward pass works in; made by a Session.
struct ForwardState {
  KvCache kv;
  Scratch scratch;
  DeviceTensor rope_table;
  MatmulObserver observe_matmul = {};  // may be null
};

// Called after each block with its index and the residual stream, [n_tokens, dim].
using LayerObserver = std::function<void(int64_t layer, Tensor x)>;

// The transformer up to its last block, for `tokens` at positions pos, pos + 1, ...: returns the
// residual stream, [tokens.size(), dim], in the scratch of `state`. `observe` may be null.
Tensor forward(Backend& backend, const Model& model, ForwardState& state,
               std::span<const TokenId> tokens, int64_t pos, const LayerObserver& observe = {});

// Its two parts: the embedding of tokens at positions pos, pos + 1, ... in the scratch of `state`;
// and one block, x [n_tokens, dim] in place.
Tensor embed_tokens(Backend& backend, const Model& model, ForwardState& state,
                    std::span<const TokenId> tokens, int64_t pos);
void forward_layer(Backend& backend, const Model& model, ForwardState& state, int64_t layer,
                   Tensor x, int64_t pos);

// The same as forward() for sequences of `lengths` tokens, one after another in `tokens`, each from
// position 0: one multiplication for all, attention for each alone. Row by row the same bits. The
// cache holds nothing of use afterwards.
Tensor forward_sequences(Backend& backend, const Model& model, ForwardState& state,
                         std::span<const TokenId> tokens, std::span<const int64_t> lengths);

// logits = output_norm(x) · outputᵀ for each row; x [n, dim] is overwritten, logits [n,
// vocab_size].
void output_logits(Backend& backend, const Model& model, Tensor x, Tensor logits);

}  // namespace minfer
