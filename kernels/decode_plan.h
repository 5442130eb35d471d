#pragma once

#include <span>
#include <vector>

#include "kernels/backend.h"

namespace minfer {

// One transformer block as a decode plan sees it: views that the plan keeps. A tensor that the
// model does not have is null. Shapes as in models/weights.h.
struct DecodeLayer {
  Tensor attn_norm, attn_norm_bias;
  const Matrix *wq = nullptr, *wk = nullptr, *wv = nullptr, *wo = nullptr;
  Tensor bq, bk, bv, bo;
  Tensor ffn_norm, ffn_norm_bias;
  const Matrix *w_gate = nullptr, *w_up = nullptr, *w_down = nullptr;
  Tensor b_gate, b_up, b_down;
  KvLayer* cache = nullptr;
};

// A whole decoder: blocks of x += attention(norm(x)); x += ffn(norm(x)), with RMSNorm and SwiGLU
// where w_gate is there, else LayerNorm and GELU.
struct DecodeModel {
  const Matrix* embedding = nullptr;
  const Matrix* positions = nullptr;  // learned positions, or null
  Tensor rope_table;                  // [max_seq_len, rotary_dim / 2, 2] F32, or null
  std::vector<DecodeLayer> layers;
  Tensor output_norm, output_norm_bias;
  const Matrix* output = nullptr;
  int64_t n_heads = 0, head_dim = 0;
  float norm_eps = 0, attention_scale = 0;
  GeluKind gelu = GeluKind::Tanh;
};

// A whole step of one token, fused as the backend can: what decode takes where there is one. The
// step op by op computes the same within the bound of the formats, and is its oracle.
class DecodePlan {
 public:
  virtual ~DecodePlan() = default;
  // Evaluates `token` at position `pos`, after which the caches hold it; logits [vocab_size], in
  // host memory, valid until the next step.
  virtual std::span<const float> step(TokenId token, int64_t pos) = 0;
};

}  // namespace minfer
