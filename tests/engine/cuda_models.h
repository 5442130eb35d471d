#pragma once

#include <gtest/gtest.h>

#include "engine/generate.h"
#include "engine/sampler.h"
#include "models/synthetic.h"
#include "tests/support/float64_llama.h"
#include "tests/support/half_backend.h"
#include "tests/support/specs.h"

// What tests of whole models on a card share: ways to run them, and how far their logits are off.
namespace minfer::test {

// First in a test that needs a card.
#define MINFER_NEEDS_CARD() \
  if (n_cuda_devices() == 0) GTEST_SKIP() << "needs a CUDA card"

class CudaModel : public testing::Test {
 protected:
  void SetUp() override {
    MINFER_NEEDS_CARD();
    backend_ = make_cuda_backend();
  }
  std::unique_ptr<Backend> backend_;
};

inline std::vector<TokenId> some_ids(int64_t n, int64_t vocab_size) {
  std::vector<TokenId> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(TokenId((i * 7919 + 1) % vocab_size));
  return ids;
}

// Logits of the last token by passes of `chunk` tokens.
inline std::vector<float> last_logits(const Model& model, Backend& backend,
                                      std::span<const TokenId> ids, SessionOptions options) {
  Session session(model, backend, options);
  const auto logits = session.eval(ids);
  return {logits.begin(), logits.end()};
}

// The same by one pass a token, as it is decoded.
inline std::vector<float> decoded_logits(const Model& model, Backend& backend,
                                         std::span<const TokenId> ids,
                                         const SessionOptions& options) {
  Session session(model, backend, options);
  std::span<const float> logits;
  for (const TokenId id : ids) logits = session.eval({&id, 1});
  return {logits.begin(), logits.end()};
}

// Logits of all positions, by passes of options.prefill_chunk tokens.
inline std::vector<float> all_logits(const Model& model, Backend& backend,
                                     std::span<const TokenId> ids, const SessionOptions& options) {
  Session session(model, backend, options);
  std::vector<float> all;
  while (!ids.empty()) {
    const auto n = std::min(ids.size(), size_t(session.prefill_chunk()));
    const auto logits = session.eval_all(ids.first(n));
    all.insert(all.end(), logits.begin(), logits.end());
    ids = ids.subspan(n);
  }
  return all;
}

// The same by one pass a token, as it is decoded.
inline std::vector<float> all_decoded_logits(const Model& model, Backend& backend,
                                             std::span<const TokenId> ids,
                                             const SessionOptions& options) {
  Session session(model, backend, options);
  std::vector<float> all;
  for (const TokenId id : ids) {
    const auto logits = session.eval({&id, 1});
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

// The same by passes of up to n tokens, as drafts are decoded.
inline std::vector<float> all_draft_logits(const Model& model, Backend& backend,
                                           std::span<const TokenId> ids, int64_t n,
                                           const SessionOptions& options) {
  Session session(model, backend, options);
  std::vector<float> all;
  while (!ids.empty()) {
    const auto some = ids.first(std::min(ids.size(), size_t(n)));
    const auto logits = session.decode(some);
    all.insert(all.end(), logits.begin(), logits.end());
    ids = ids.subspan(some.size());
  }
  return all;
}

// The ids as n sequences of the same length, one after another, whose tokens go side by side.
inline std::vector<float> all_rows_logits(const Model& model, Backend& backend,
                                          std::span<const TokenId> ids, int64_t n) {
  const int64_t length = std::ssize(ids) / n;
  Executor executor(model, backend, {.max_seq_len = length, .n_sequences = n});
  std::vector<Sequence> sequences;
  for (int64_t i = 0; i < n; ++i) sequences.push_back(executor.make_sequence());
  const auto width = static_cast<size_t>(model.spec.vocab_size);
  std::vector<float> all(ids.size() * width);
  for (int64_t t = 0; t < length; ++t) {
    std::vector<SequenceTokens> parts;
    for (int64_t i = 0; i < n; ++i) {
      parts.push_back({&sequences[size_t(i)], ids.subspan(size_t(i * length + t), 1), 1});
    }
    const std::span<const float> logits = executor.decode(parts);
    for (int64_t i = 0; i < n; ++i) {
      std::ranges::copy(logits.subspan(size_t(i) * width, width),
                        all.begin() + (i * length + t) * int64_t(width));
    }
  }
  return all;
}

// Root of the mean square of the differences, relative to that of the reference.
inline double relative_error(std::span<const float> got, std::span<const double> reference) {
  std::vector<double> differences;
  for (size_t i = 0; i < reference.size(); ++i)
    differences.push_back(double(got[i]) - reference[i]);
  return rms(differences) / rms({reference.begin(), reference.end()});
}

inline std::vector<double> doubles_of(std::span<const float> values) {
  return {values.begin(), values.end()};
}

// The ways to decode a token, and a name of each.
struct DecodeWay {
  const char* name;
  bool fused, persistent;
};
constexpr DecodeWay kDecodeWays[] = {
    {"one kernel", true, true}, {"a graph", true, false}, {"op by op", false, false}};

inline DecodeSampling seeded(int64_t n_tokens) {
  return {.temperature = 1.5f,
          .top_k = 40,
          .top_p = 0.95f,
          .min_p = 0.01f,
          .seed = 11,
          .first_draw = 5,
          .n_tokens = n_tokens,
          .banned = {3, 17}};
}

// The sampler of the host with the same options.
inline Sampler sampler_of(const DecodeSampling& s) {
  SamplerOptions options;
  options.temperature = s.temperature;
  options.top_k = s.top_k;
  options.top_p = s.top_p;
  options.min_p = s.min_p;
  options.seed = s.seed;
  for (const TokenId id : s.banned) options.logit_bias.emplace_back(id, -INFINITY);
  return {options, s.n_tokens};
}

// The tokens behind `token`, each chosen on the host from the logits of a step of its own.
inline std::vector<TokenId> chosen_on_host(Session& session, TokenId token, int64_t n,
                                           const DecodeSampling& sampling) {
  Sampler sampler = sampler_of(sampling);
  std::vector<TokenId> ids;
  for (int64_t i = 0; i < n; ++i) {
    const auto logits = session.eval({&token, 1}).first(size_t(sampling.n_tokens));
    token = sampler.sample(logits, {}, sampling.first_draw + uint64_t(i));
    ids.push_back(token);
  }
  return ids;
}

// The first `n` of those that a run of n_steps steps chooses.
inline std::vector<TokenId> chosen_by_run(Session& session, TokenId token, int64_t n,
                                          int64_t n_steps, const DecodeSampling& sampling) {
  const int64_t pos = session.pos();
  auto run = session.run_from(token, n_steps, sampling);
  EXPECT_TRUE(run);
  std::vector<TokenId> ids;
  while (run && std::ssize(ids) < n) {
    ids.push_back(run->next());
    EXPECT_EQ(session.pos(), pos + std::ssize(ids));
  }
  return ids;
}

// A small model, whose token 77 has a NaN in its embedding.
inline Model model_with_a_nan(Backend& backend, int64_t vocab_size = 131) {
  const ModelSpec spec = llama_spec({.dim = 64,
                                     .ffn_dim = 128,
                                     .n_heads = 4,
                                     .n_kv_heads = 4,
                                     .head_dim = 16,
                                     .vocab_size = vocab_size,
                                     .trained_seq_len = 64});
  Model model = make_synthetic_model(spec, DType::F16, backend, 1);
  HostTensor embedding = random_normal(1, {vocab_size, 64});
  embedding.as<float>()[77 * 64 + 3] = std::nanf("");
  model.weights.embedding = backend.pack_matrix(embedding);
  return model;
}

}  // namespace minfer::test
