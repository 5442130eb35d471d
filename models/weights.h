#pragma once

#include <vector>

#include "kernels/backend.h"

namespace minfer {

// One transformer block. Matrices are [out, in]; a tensor that the model does not have is null.
struct LayerWeights {
  DeviceTensor attn_norm, attn_norm_bias;  // [dim]; the bias: LayerNorm only
  Matrix wq;                               // [q_dim, dim]
  Matrix wk, wv;                           // [kv_dim, dim]
  Matrix wo;                               // [dim, q_dim]
  DeviceTensor bq, bk, bv, bo;             // [q_dim], [kv_dim], [kv_dim], [dim]

  DeviceTensor ffn_norm, ffn_norm_bias;  // [dim]
  Matrix w_gate;                         // [ffn_dim, dim]; Llama only
  Matrix w_up;                           // [ffn_dim, dim]
  Matrix w_down;                         // [dim, ffn_dim]
  DeviceTensor b_gate, b_up, b_down;     // [ffn_dim], [ffn_dim], [dim]
};

struct Weights {
  Matrix embedding;  // [vocab_size, dim]
  Matrix positions;  // [trained_seq_len, dim]; GPT-2 only
  std::vector<LayerWeights> layers;
  DeviceTensor output_norm, output_norm_bias;  // [dim]
  Matrix output;                               // [vocab_size, dim]; null where tied

  const Matrix& output_matrix() const { return output ? output : embedding; }
};

}  // namespace minfer
