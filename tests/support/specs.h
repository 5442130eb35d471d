#pragma once

#include "models/spec.h"

namespace minfer::test {

struct BlockSizes {
  int64_t dim = 0, ffn_dim = 0, n_layers = 2, n_heads = 0, n_kv_heads = 0, head_dim = 0;
  int64_t vocab_size = 0, trained_seq_len = 0;
};

// Llama blocks, all alike.
inline ModelSpec llama_spec(const BlockSizes& sizes) {
  LayerSpec layer;
  layer.n_heads = sizes.n_heads;
  layer.n_kv_heads = sizes.n_kv_heads;
  layer.head_dim = sizes.head_dim;
  layer.ffn_dim = sizes.ffn_dim;
  layer.norm_eps = 1e-5f;
  layer.rope = 0;
  ModelSpec spec;
  spec.dim = sizes.dim;
  spec.vocab_size = sizes.vocab_size;
  spec.trained_seq_len = sizes.trained_seq_len;
  spec.layers.assign(static_cast<size_t>(sizes.n_layers), layer);
  spec.ropes = {{.rotary_dim = layer.head_dim}};
  spec.edges.output_norm_eps = layer.norm_eps;
  return spec;
}

// GPT-2 blocks, all alike: as many key/value heads as query heads.
inline ModelSpec gpt2_spec(const BlockSizes& sizes) {
  ModelSpec spec = llama_spec(sizes);
  spec.family = "gpt2";
  spec.ropes.clear();
  spec.edges.learned_positions = true;
  spec.edges.output_norm = NormKind::Layer;
  for (LayerSpec& layer : spec.layers) {
    layer.n_kv_heads = layer.n_heads;
    layer.rope = -1;
    layer.norm = NormKind::Layer;
    layer.gated = false;
    layer.activation = Activation::GeluTanh;
    layer.qkv_bias = layer.attn_out_bias = layer.ffn_bias = true;
  }
  return spec;
}

}  // namespace minfer::test
