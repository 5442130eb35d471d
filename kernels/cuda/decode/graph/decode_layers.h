#pragma once

#include "kernels/cuda/launchers.h"
#include "kernels/decode_plan.h"

namespace minfer::cuda {

// The rows of a step, in device memory: one of each sequence, or several of each at consecutive
// positions.
struct StepRows {
  const int32_t *tokens, *pos;  // [n]
  const int32_t* pages;         // [n / of_sequence, pages_for(max_seq_len)]: page tables
  int64_t of_sequence = 1;      // rows of a sequence
};

// The fused kernels of a decode step, five for each layer (two more if queries and keys are normed
// over their whole width, one more with experts, three more with a shared one), for up to
// kMaxGemvTokens rows. PDL lets each kernel read its weights before the kernel in front of it has
// ended: docs/decode.md.
class DecodeLayers {
 public:
  // Whether the kernels compute every field that the specs of the model set.
  static bool can_compute(const DecodeModel& model);

  DecodeLayers(cudaStream_t stream, DType compute_type, const DecodeModel& model, int64_t max_rows);

  // Computes the logits [n, vocab_size] F32 of n rows. x [n, dim] F32 holds the embeddings of their
  // tokens and becomes the residual stream.
  void launch(Tensor x, Tensor logits, const StepRows& rows);
  // The output norm and matrix alone: logits of the rows of the residual stream x. behind_experts:
  // the kernel in front of it is one of experts.
  static void launch_output(cudaStream_t stream, const DecodeModel& model, Tensor x, Tensor logits,
                            bool behind_experts);

 private:
  void launch_layer(const DecodeLayer& layer, bool behind_experts, Tensor x, const StepRows& rows);
  // x += the mixture of experts of norm(x).
  void launch_experts(const DecodeLayer& layer, Tensor x, const GemvNorm& norm);

  cudaStream_t stream_;
  DecodeModel model_;
  DeviceTensor position_;              // [max_rows, dim] F32
  DeviceTensor q_, k_, v_, attended_;  // q, attended: [max_rows, q_dim]; k, v: [max_rows, kv_dim]
  DeviceTensor hidden_;                // [max_rows, ffn_dim]
  // A mixture of experts needs these too.
  DeviceTensor logits_;         // of the router, [max_rows, n_experts] F32
  DeviceTensor expert_hidden_;  // [max_rows, n_active * ffn_dim]
  DeviceTensor shared_hidden_;  // of the shared expert, [max_rows, shared_ffn_dim]
  DeviceTensor shared_;         // its output, [max_rows, dim]
  DeviceTensor shared_gate_;    // the logit of its gate, [max_rows, 1] F32
  DeviceTensor workspace_;
};

}  // namespace minfer::cuda
