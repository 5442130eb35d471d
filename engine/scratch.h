#pragma once

#include <vector>

#include "kernels/backend.h"
#include "models/spec.h"

namespace minfer {

// Every activation of one forward pass, for up to max_tokens rows, of the backend's activation
// dtype where nothing else is said; sized once, for the widest layer, and used again by each.
struct Scratch {
  DeviceTensor x;          // [max_tokens, dim] F32, the residual stream
  DeviceTensor positions;  // [max_tokens, dim] F32; null where positions are not learned
  DeviceTensor normed;     // [max_tokens, dim]
  DeviceTensor q;          // [max_tokens, q_dim]
  DeviceTensor k, v;       // [max_tokens, kv_dim]
  DeviceTensor attended;   // [max_tokens, q_dim]
  DeviceTensor hidden;     // [max_tokens, ffn_dim]
  DeviceTensor logits;     // [1, vocab_size] F32
};

// Bytes of both that follow.
int64_t scratch_bytes(const ModelSpec& spec, DType activation_dtype, int64_t max_tokens);
int64_t rope_table_bytes(const ModelSpec& spec, int64_t max_seq_len);

Scratch make_scratch(Backend& backend, const ModelSpec& spec, int64_t max_tokens);

// For each of the model's ropes the cosine and sine of each position and rotary pair, [max_seq_len,
// rotary_dim / 2, 2] f32, computed in double and rounded once.
std::vector<DeviceTensor> make_rope_tables(Backend& backend, const ModelSpec& spec,
                                           int64_t max_seq_len);

}  // namespace minfer
