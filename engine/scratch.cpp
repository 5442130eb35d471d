#include "engine/scratch.h"

#include <cmath>

namespace minfer {
namespace {

// visit(buffer, dtype, shape) for each that the model needs.
template <typename Visitor>
void visit_buffers(Scratch& s, const ModelConfig& config, DType dtype, int64_t max_tokens,
                   Visitor visit) {
  const auto visit_rows = [&](DeviceTensor& buffer, int64_t width) {
    visit(buffer, dtype, Shape{max_tokens, width});
  };
  visit(s.x, DType::F32, Shape{max_tokens, config.dim});
  if (!config.is_llama()) visit(s.positions, DType::F32, Shape{max_tokens, config.dim});
  visit_rows(s.normed, config.dim);
  visit_rows(s.q, config.q_dim());
  visit_rows(s.k, config.kv_dim());
  visit_rows(s.v, config.kv_dim());
  visit_rows(s.attended, config.q_dim());
  if (config.is_llama()) visit_rows(s.gate, config.ffn_dim);
  visit_rows(s.up, config.ffn_dim);
  visit(s.logits, DType::F32, Shape{1, config.vocab_size});
}

}  // namespace

int64_t scratch_bytes(const ModelConfig& config, DType activation_dtype, int64_t max_tokens) {
  Scratch s;
  int64_t n_bytes = 0;
  visit_buffers(s, config, activation_dtype, max_tokens,
                [&](DeviceTensor&, DType dtype, const Shape& shape) {
                  n_bytes = checked_add(n_bytes, bytes_of(dtype, shape));
                });
  return n_bytes;
}

int64_t rope_table_bytes(const ModelConfig& config, int64_t max_seq_len) {
  return config.is_llama() ? bytes_of(DType::F32, {max_seq_len, config.rotary_dim / 2, 2}) : 0;
}

Scratch make_scratch(Backend& backend, const ModelConfig& config, int64_t max_tokens) {
  Scratch s;
  visit_buffers(s, config, backend.activation_dtype(), max_tokens,
                [&](DeviceTensor& buffer, DType dtype, const Shape& shape) {
                  buffer = backend.allocate(dtype, shape);
                });
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
