#pragma once

#include <functional>
#include <span>
#include <vector>

#include "engine/kv_cache.h"
#include "engine/scratch.h"
#include "models/model.h"
#include "models/weight_list.h"

namespace minfer {

// Throws Input, naming the feature, if the spec asks for one that the forward pass lacks.
void require_computable(const ModelSpec& spec);

// The KV cache, buffers and tables that a forward pass uses.
struct ForwardState {
  KvCache kv;
  Scratch scratch;
  std::vector<DeviceTensor> rope_tables;   // one for each of the model's ropes
  std::function<void()> after_block = {};  // called after each block; may be null
};

// Called after each block with its index and the residual stream, [n_tokens, dim].
using LayerObserver = std::function<void(int64_t layer, Tensor x)>;

// Runs the embedding and all blocks for the tokens of a batch. Returns the residual stream after
// the last block, [tokens.size(), dim], in the scratch of `state`. On the CPU a row's bits do not
// depend on the other rows. `observe` may be null.
Tensor forward(Backend& backend, const Model& model, ForwardState& state,
               std::span<const TokenId> tokens, Batch batch, const LayerObserver& observe = {});

// Returns the last n_last rows of what forward() gives for one sequence, [n_last, dim]. It costs
// less: in the last block, rows before them need no more than their keys and values.
Tensor forward_last(Backend& backend, const Model& model, ForwardState& state,
                    std::span<const TokenId> tokens, const SequenceRows& rows, int64_t n_last);

// Only fills the KV cache with the tokens of one sequence. Returns the residual stream before the
// last block, [tokens.size(), dim].
Tensor forward_to_cache(Backend& backend, const Model& model, ForwardState& state,
                        std::span<const TokenId> tokens, const SequenceRows& rows);

// Returns the first block's input: the embedding of the tokens, plus that of their positions if
// those are learned, [tokens.size(), dim] in the scratch of `state`.
Tensor embed_tokens(Backend& backend, const Model& model, ForwardState& state,
                    std::span<const TokenId> tokens, Batch batch);

// Computes the activations that some matrices of a block multiply, [n_tokens, in] in the scratch of
// `state`. x [n_tokens, dim] is the residual stream before the block's attention or, for Ffn and
// FfnOutput, before its FFN; in a block whose halves are parallel, before the block in any case.
// FfnOutput is for blocks without experts.
Tensor block_input(Backend& backend, const Model& model, ForwardState& state, int64_t layer,
                   BlockInput which, Tensor x, Batch batch);

// x += scale * post_norm(input wᵀ + bias), w being wo for AttentionOutput and w_down for FfnOutput.
// Then the norm *next, if it is given: of x.
void add_block_output(Backend& backend, const Model& model, int64_t layer, BlockInput which,
                      Tensor x, Tensor input, const NormArgs* next = nullptr);

// x += scale * post_norm(experts(norm(x))): the mixture of experts of a block, x [n_tokens, dim]
// being the residual stream that block_input() takes for Ffn.
void add_block_experts(Backend& backend, const Model& model, ForwardState& state, int64_t layer,
                       Tensor x, Batch batch);

// logits = output_norm(x) · outputᵀ + bias, scaled and capped, for each row of x [n, dim], which is
// not changed; logits [n, vocab_size] F32.
void output_logits(Backend& backend, const Model& model, ForwardState& state, Tensor x,
                   Tensor logits);

}  // namespace minfer
