#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "engine/scoring_windows.h"
#include "engine/session.h"
#include "models/synthetic.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/specs.h"

namespace minfer::test {

// The byte-level vocabulary: one token for each byte but "ab" and two line ends, <bos> and <eos>.
inline constexpr TokenId kBos = 258, kEos = 259;
inline std::unique_ptr<Tokenizer> scoring_tokenizer(bool adds_bos) {
  Metadata metadata = byte_vocabulary({"<bos>", "<eos>"});
  metadata.set("tokenizer.ggml.add_bos_token", adds_bos);
  return make_gguf_tokenizer(metadata);
}

inline Model scoring_model(Backend& backend, uint64_t seed, DType dtype = DType::F16) {
  const ModelSpec spec = llama_spec({.dim = 48,
                                     .ffn_dim = 56,
                                     .n_heads = 4,
                                     .n_kv_heads = 2,
                                     .head_dim = 12,
                                     .vocab_size = 260,
                                     .trained_seq_len = 128});
  return make_synthetic_model(spec, dtype, backend, seed);
}

inline std::string some_text(size_t n) {
  std::string text;
  for (size_t i = 0; i < n; ++i) text += static_cast<char>('c' + (i * i * 7 + i / 3) % 24);
  return text;
}

// log p(each token of the vocabulary | tokens), in double, from a session of its own.
inline std::vector<double> log_probabilities(const Model& model, Backend& backend,
                                             std::span<const TokenId> tokens) {
  Session session(model, backend, {.max_seq_len = std::ssize(tokens), .kv_dtype = DType::F32});
  const std::span<const float> logits = session.eval(tokens);
  double sum = 0;
  for (const float x : logits) sum += std::exp(double{x});
  std::vector<double> logs;
  for (const float x : logits) logs.push_back(double{x} - std::log(sum));
  return logs;
}

}  // namespace minfer::test
