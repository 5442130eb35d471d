#include <cstdio>

#include "engine/session.h"
#include "models/synthetic.h"

int main() {
  const auto backend = minfer::make_cpu_backend({.n_threads = 1, .isa = {}});
  minfer::ModelConfig config;
  config.dim = config.ffn_dim = 32;
  config.n_layers = 1;
  config.n_heads = config.n_kv_heads = 2;
  config.head_dim = config.rotary_dim = 16;
  config.vocab_size = 10;
  config.trained_seq_len = 8;
  config.norm_eps = 1e-5f;
  const minfer::Model model =
      minfer::make_synthetic_model(config, minfer::DType::F32, *backend, /*seed=*/1);
  minfer::Session session(model, *backend, {});
  const minfer::TokenId prompt[] = {1, 2, 3};
  std::printf("%zu logits\n", session.eval(prompt).size());
}
