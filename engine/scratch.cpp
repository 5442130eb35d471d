#include "engine/scratch.h"

#include <cmath>

namespace minfer {

Scratch make_scratch(Backend& backend, const ModelConfig& config, int64_t max_tokens) {
  const auto rows = [&](int64_t n_rows, int64_t width) {
    return backend.allocate(backend.activation_dtype(), {n_rows, width});
  };
  Scratch s;
  s.x = backend.allocate(DType::F32, {max_tokens, config.dim});
  if (!config.is_llama()) s.positions = backend.allocate(DType::F32, {max_tokens, config.dim});
  s.normed = rows(max_tokens, config.dim);
  s.q = rows(max_tokens, config.q_dim());
  s.k = rows(max_tokens, config.kv_dim());
  s.v = rows(max_tokens, config.kv_dim());
  s.attended = rows(max_tokens, config.q_dim());
  if (config.is_llama()) s.gate = rows(max_tokens, config.ffn_dim);
  s.up = rows(max_tokens, config.ffn_dim);
  s.logits = backend.allocate(DType::F32, {1, config.vocab_size});
  return s;
}

DeviceTensor make_rope_table(Backend& backend, const ModelConfig& config, int64_t max_seq_len) {
  if (!config.is_llama()) return {};
  const std::vector<double> frequencies = rope_frequencies(config);
  HostTensor table(DType::F32, {max_seq_len, config.rotary_dim / 2, 2});
  float* out = table.as<float>();
  for (int64_t pos = 0; pos < max_seq_len; ++pos) {
    for (const double frequency : frequencies) {
      const double angle = static_cast<double>(pos) * frequency;
      *out++ = static_cast<float>(std::cos(angle));
      *out++ = static_cast<float>(std::sin(angle));
    }
  }
  return backend.upload(table);
}

}  // namespace minfer
