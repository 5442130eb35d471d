#pragma once

#include <functional>
#include <span>
#include <vector>

#include "engine/kv_cache.h"
#include "engine/scratch.h"
#include "models/model.h"
#include "models/weight_list.h"

namespace minfer {

// Throws Input, naming the field, for a spec that asks for more than the forward pass computes.
void require_computable(const ModelSpec& spec);

// What a forward pass works in; made by a Session.
struct ForwardState {
  KvCache kv;
  Scratch scratch;
  std::vector<DeviceTensor> rope_tables;   // one for each of the model's ropes
  std::function<void()> after_block = {};  // may be null
};

// Called after each block with its index and the residual stream, [n_tokens, dim].
using LayerObserver = std::function<void(int64_t layer, Tensor x)>;

// The transformer up to its last block, for the tokens of a batch: returns the residual stream,
// [tokens.size(), dim], in the scratch of `state`. On the CPU a row's bits do not depend on the
// other rows. `observe` may be null.
Tensor forward(Backend& backend, const Model& model, ForwardState& state,
               std::span<const TokenId> tokens, Batch batch, const LayerObserver& observe = {});

// The last n_last rows of it, [n_last, dim], of one sequence, for less: the last block takes of the
// other rows only what attention needs.
Tensor forward_last(Backend& backend, const Model& model, ForwardState& state,
                    std::span<const TokenId> tokens, const SequenceRows& rows, int64_t n_last);

// The same for none of them: only the cache is filled. Returns the residual stream in front of the
// last block, [tokens.size(), dim].
Tensor forward_to_cache(Backend& backend, const Model& model, ForwardState& state,
                        std::span<const TokenId> tokens, const SequenceRows& rows);

// Its beginning: the embedding of the tokens in the scratch of `state`.
Tensor embed_tokens(Backend& backend, const Model& model, ForwardState& state,
                    std::span<const TokenId> tokens, Batch batch);

// What some matrices of a block multiply, [n_tokens, in] in the scratch of `state`, from the
// residual stream x [n_tokens, dim] in front of the block's attention, or of its FFN for the latter
// two.
Tensor block_input(Backend& backend, const Model& model, ForwardState& state, int64_t layer,
                   BlockInput which, Tensor x, Batch batch);

// x += input wᵀ + bias, w being wo for AttentionOutput and w_down for FfnOutput.
void add_block_output(Backend& backend, const LayerWeights& layer, BlockInput which, Tensor x,
                      Tensor input);

// logits = output_norm(x) · outputᵀ for each row of x [n, dim], which stays; logits [n, vocab_size]
// F32.
void output_logits(Backend& backend, const Model& model, ForwardState& state, Tensor x,
                   Tensor logits);

}  // namespace minfer
