#pragma once

#include <vector>

#include "kernels/backend.h"
#include "models/spec.h"

namespace minfer {

// The activation buffers of a forward pass with up to max_tokens rows, in the backend's activation
// dtype unless another one is given. Each is allocated once, for the widest layer, and every layer
// uses it again.
struct Scratch {
  DeviceTensor x;          // [max_tokens, dim] F32, the residual stream
  DeviceTensor positions;  // [max_tokens, dim] F32; null unless positions are learned
  DeviceTensor normed;     // [max_tokens, dim]
  DeviceTensor q;          // [max_tokens, q_dim]
  DeviceTensor k, v;       // [max_tokens, kv_dim]
  DeviceTensor attended;   // [max_tokens, q_dim]
  DeviceTensor hidden;     // [max_tokens, ffn_dim]; null if every block has experts
  DeviceTensor logits;     // [1, vocab_size] F32
};

// Return the bytes of what make_scratch and make_rope_tables allocate.
int64_t scratch_bytes(const ModelSpec& spec, DType activation_dtype, int64_t max_tokens);
int64_t rope_table_bytes(const ModelSpec& spec, int64_t max_seq_len);

Scratch make_scratch(Backend& backend, const ModelSpec& spec, int64_t max_tokens);

// Returns a table for each of the model's ropes: the cosine and sine of each position and rotary
// pair, [max_seq_len, rotary_dim / 2, 2] f32, computed in double and rounded once. Scalings that
// depend on the length of the text choose by max_seq_len.
std::vector<DeviceTensor> make_rope_tables(Backend& backend, const ModelSpec& spec,
                                           int64_t max_seq_len);

}  // namespace minfer
