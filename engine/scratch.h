#pragma once

#include "kernels/backend.h"
#include "models/model_config.h"

namespace minfer {

// Every activation of one forward pass, for up to max_tokens rows, of the backend's activation
// dtype where nothing else is said; sized once and used again by each layer.
struct Scratch {
  DeviceTensor x;          // [max_tokens, dim] F32, the residual stream
  DeviceTensor positions;  // [max_tokens, dim] F32; GPT-2 only
  DeviceTensor normed;     // [max_tokens, dim]
  DeviceTensor q;          // [max_tokens, q_dim]
  DeviceTensor k, v;       // [max_tokens, kv_dim]
  DeviceTensor attended;   // [max_tokens, q_dim]
  DeviceTensor gate;       // [max_tokens, ffn_dim]; Llama only
  DeviceTensor up;         // [max_tokens, ffn_dim]
  DeviceTensor logits;     // [1, vocab_size] F32
};

// Bytes of both that follow.
int64_t scratch_bytes(const ModelConfig& config, DType activation_dtype, int64_t max_tokens);
int64_t rope_table_bytes(const ModelConfig& config, int64_t max_seq_len);

Scratch make_scratch(Backend& backend, const ModelConfig& config, int64_t max_tokens);

// Cosine and sine of each position and rotary pair, [max_seq_len, rotary_dim / 2, 2] f32, computed
// in double and rounded once; null where the model has no RoPE.
DeviceTensor make_rope_table(Backend& backend, const ModelConfig& config, int64_t max_seq_len);

}  // namespace minfer
