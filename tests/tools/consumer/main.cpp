#include <cstdio>

#include "engine/session.h"
#include "models/synthetic.h"

int main() {
  const auto backend = minfer::make_cpu_backend({.n_threads = 1, .isa = {}});
  minfer::LayerSpec layer;
  layer.n_heads = layer.n_kv_heads = 2;
  layer.head_dim = 16;
  layer.ffn_dim = 32;
  layer.norm_eps = 1e-5f;
  layer.rope = 0;
  minfer::ModelSpec spec;
  spec.dim = 32;
  spec.vocab_size = 10;
  spec.trained_seq_len = 8;
  spec.layers = {layer};
  spec.ropes = {{.rotary_dim = 16}};
  spec.edges.output_norm_eps = 1e-5f;
  const minfer::Model model =
      minfer::make_synthetic_model(spec, minfer::DType::F32, *backend, /*seed=*/1);
  minfer::Session session(model, *backend, {});
  const minfer::TokenId prompt[] = {1, 2, 3};
  std::printf("%zu logits\n", session.eval(prompt).size());
}
