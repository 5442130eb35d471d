#include "engine/decode_model.h"

namespace minfer {

DecodeModel decode_model(const Model& model, ForwardState& state, int64_t max_seq_len) {
  const Weights& w = model.weights;
  DecodeModel decode;
  decode.max_seq_len = max_seq_len;
  decode.embedding = &w.embedding;
  if (w.positions) decode.positions = &w.positions;
  for (const DeviceTensor& table : state.rope_tables) decode.rope_tables.push_back(table);
  for (size_t i = 0; i < w.layers.size(); ++i) {
    LayerSpec spec = model.spec.layers[i];
    if (spec.window >= max_seq_len) spec.window = 0;  // none that a sequence reaches
    decode.layers.push_back({spec, &w.layers[i], &state.kv.layers[i]});
  }
  decode.edges = model.spec.edges;
  decode.output_norm = &w.output_norm;
  decode.output = &w.output_matrix();
  decode.vocab_size = model.spec.vocab_size;
  decode.logits_begin = model.spec.output_begin;
  return decode;
}

}  // namespace minfer
