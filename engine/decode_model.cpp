#include "engine/decode_model.h"

#include <cmath>

namespace minfer {
namespace {

const Matrix* or_null(const Matrix& matrix) { return matrix ? &matrix : nullptr; }

DecodeLayer decode_layer(const LayerWeights& l, KvLayer& cache) {
  return {.attn_norm = l.attn_norm,
          .attn_norm_bias = l.attn_norm_bias,
          .wq = &l.wq,
          .wk = &l.wk,
          .wv = &l.wv,
          .wo = &l.wo,
          .bq = l.bq,
          .bk = l.bk,
          .bv = l.bv,
          .bo = l.bo,
          .ffn_norm = l.ffn_norm,
          .ffn_norm_bias = l.ffn_norm_bias,
          .w_gate = or_null(l.w_gate),
          .w_up = &l.w_up,
          .w_down = &l.w_down,
          .b_gate = l.b_gate,
          .b_up = l.b_up,
          .b_down = l.b_down,
          .cache = &cache};
}

}  // namespace

DecodeModel decode_model(const Model& model, ForwardState& state) {
  const Weights& w = model.weights;
  const ModelConfig& config = model.config;
  DecodeModel decode{.embedding = &w.embedding,
                     .positions = or_null(w.positions),
                     .rope_table = state.rope_table,
                     .layers = {},
                     .output_norm = w.output_norm,
                     .output_norm_bias = w.output_norm_bias,
                     .output = &w.output_matrix(),
                     .n_heads = config.n_heads,
                     .head_dim = config.head_dim,
                     .norm_eps = config.norm_eps,
                     .attention_scale = attention_scale(config),
                     .gelu = config.gelu};
  for (size_t i = 0; i < w.layers.size(); ++i) {
    decode.layers.push_back(decode_layer(w.layers[i], state.kv.layers[i]));
  }
  return decode;
}

}  // namespace minfer
