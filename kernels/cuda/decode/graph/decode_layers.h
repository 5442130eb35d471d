#pragma once

#include "kernels/cuda/launchers.h"
#include "kernels/decode_plan.h"

namespace minfer::cuda {

// The rows of a step, one of each sequence, in device memory.
struct StepRows {
  const int32_t *tokens, *pos;  // [n]
  const int32_t* pages;         // [n, pages_for(max_seq_len)]: the table of each
};

// The fused kernels of a decode step, five for each layer, for up to kMaxMatvecTokens rows. PDL
// lets each of them read its weights before the kernel in front of it has ended: docs/decode.md.
class DecodeLayers {
 public:
  // Whether they compute all that the model's specs say.
  static bool can_compute(const DecodeModel& model);

  DecodeLayers(cudaStream_t stream, DType compute_type, const DecodeModel& model, int64_t max_rows);

  // From the tokens to the logits [n, vocab_size] F32 of n rows; x [n, dim] F32 is the residual
  // stream, embedded already.
  void launch(Tensor x, Tensor logits, const StepRows& rows);

 private:
  void launch_layer(const DecodeLayer& layer, Tensor x, const StepRows& rows);
  void norm_heads(Tensor heads, const LayerSpec& spec, const Norm& norm);

  cudaStream_t stream_;
  DecodeModel model_;
  DeviceTensor position_;              // [max_rows, dim] F32
  DeviceTensor q_, k_, v_, attended_;  // [max_rows, q_dim], [max_rows, kv_dim] twice, as q
  DeviceTensor hidden_;                // [max_rows, ffn_dim]
  DeviceTensor workspace_;
};

}  // namespace minfer::cuda
