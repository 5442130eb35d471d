#include "engine/scratch.h"

#include <algorithm>
#include <cmath>

namespace minfer {
namespace {

// visit(buffer, dtype, shape) for each that the model needs.
template <typename Visitor>
void visit_buffers(Scratch& s, const ModelSpec& spec, DType dtype, int64_t max_tokens,
                   Visitor visit) {
  const auto visit_rows = [&](DeviceTensor& buffer, int64_t width) {
    visit(buffer, dtype, Shape{max_tokens, width});
  };
  const auto widest = [&](auto width_of) {
    int64_t width = 0;
    for (const LayerSpec& layer : spec.layers) width = std::max(width, width_of(layer));
    return width;
  };
  const int64_t q_dim = widest([](const LayerSpec& layer) { return layer.q_dim(); });
  const int64_t kv_dim = widest([](const LayerSpec& layer) { return layer.kv_dim(); });
  // Blocks with experts have their own workspace: Backend::moe_workspace_bytes.
  const int64_t ffn_dim = widest(
      [](const LayerSpec& layer) { return layer.has_experts() ? int64_t{0} : layer.ffn_dim; });
  visit(s.x, DType::F32, Shape{max_tokens, spec.dim});
  if (spec.edges.learned_positions) visit(s.positions, DType::F32, Shape{max_tokens, spec.dim});
  visit_rows(s.normed, spec.dim);
  visit_rows(s.q, q_dim);
  visit_rows(s.k, kv_dim);
  visit_rows(s.v, kv_dim);
  visit_rows(s.attended, q_dim);
  if (ffn_dim > 0) visit_rows(s.hidden, ffn_dim);
  visit(s.logits, DType::F32, Shape{1, spec.vocab_size});
}

}  // namespace

int64_t scratch_bytes(const ModelSpec& spec, DType activation_dtype, int64_t max_tokens) {
  Scratch s;
  int64_t n_bytes = 0;
  visit_buffers(s, spec, activation_dtype, max_tokens,
                [&](DeviceTensor&, DType dtype, const Shape& shape) {
                  n_bytes = checked_add(n_bytes, bytes_of(dtype, shape));
                });
  return n_bytes;
}

int64_t rope_table_bytes(const ModelSpec& spec, int64_t max_seq_len) {
  int64_t n_bytes = 0;
  for (const RopeSpec& rope : spec.ropes) {
    n_bytes = checked_add(n_bytes, bytes_of(DType::F32, {max_seq_len, rope.rotary_dim / 2, 2}));
  }
  return n_bytes;
}

Scratch make_scratch(Backend& backend, const ModelSpec& spec, int64_t max_tokens) {
  Scratch s;
  visit_buffers(s, spec, backend.activation_dtype(), max_tokens,
                [&](DeviceTensor& buffer, DType dtype, const Shape& shape) {
                  buffer = backend.allocate(dtype, shape);
                });
  return s;
}

std::vector<DeviceTensor> make_rope_tables(Backend& backend, const ModelSpec& spec,
                                           int64_t max_seq_len) {
  std::vector<DeviceTensor> tables;
  for (const RopeSpec& rope : spec.ropes) {
    const std::vector<double> frequencies = rope_frequencies(rope, max_seq_len);
    HostTensor table(DType::F32, {max_seq_len, rope.rotary_dim / 2, 2});
    float* out = table.as<float>();
    for (int64_t pos = 0; pos < max_seq_len; ++pos) {
      for (const double frequency : frequencies) {
        const double angle = static_cast<double>(pos) * frequency;
        *out++ = static_cast<float>(rope.table_scale * std::cos(angle));
        *out++ = static_cast<float>(rope.table_scale * std::sin(angle));
      }
    }
    tables.push_back(backend.upload(table));
  }
  return tables;
}

}  // namespace minfer
