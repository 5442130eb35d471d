#include "engine/generate_many.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "engine/session.h"
#include "models/synthetic.h"
#include "tests/engine/toy_tokenizer.h"
#include "tests/support/expect_error.h"
#include "tests/support/half_backend.h"
#include "tests/support/specs.h"
#include "tests/support/tensors.h"

namespace minfer::test {
namespace {

constexpr int64_t kVocabSize = 131;

struct Case {
  const char* name;
  bool is_llama;
  int64_t window;
  DType kv_dtype;
  SyntheticType type;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class GenerateManyTest : public testing::TestWithParam<Case> {
 protected:
  GenerateManyTest() {
    const BlockSizes sizes = {.dim = 80,
                              .ffn_dim = 96,
                              .n_heads = 4,
                              .n_kv_heads = 2,
                              .head_dim = 20,
                              .vocab_size = kVocabSize,
                              .trained_seq_len = 500};
    ModelSpec spec = GetParam().is_llama ? llama_spec(sizes) : gpt2_spec(sizes);
    for (LayerSpec& layer : spec.layers) layer.window = GetParam().window;
    model_ = make_synthetic_model(spec, GetParam().type, *backend_, 7);
    std::vector<std::string> pieces;
    for (int64_t id = 0; id < kVocabSize; ++id) pieces.push_back(cat(id, ' '));
    model_.tokenizer = std::make_unique<ToyTokenizer>(std::move(pieces));
  }

  // Prompts of many lengths, of which some begin with the same 300 tokens, each with options of its
  // own.
  static std::vector<GenerateRequest> requests() {
    std::vector<GenerateRequest> requests;
    for (int i = 0; i < 24; ++i) {
      GenerateRequest& request = requests.emplace_back();
      const int n_common = i % 3 == 1 ? 300 : 0, length = n_common + 1 + i * 13 % 150;
      for (int t = 0; t < length; ++t) {
        request.prompt.push_back((t * t * 7 + (t < n_common ? 3 : i * t) + 2) % 129 + 2);
      }
      request.options.n_predict = i == 5 ? 0 : 1 + i * 5 % 30;
      request.options.sampler.temperature = i % 2 == 0 ? 0.0f : 1.0f;
      request.options.sampler.seed = uint64_t(i);
      if (i % 4 == 0) request.options.sampler.repeat_penalty = 1.3f;
      if (i % 5 == 0) request.options.n_logprobs = 2;
    }
    return requests;
  }

  SessionOptions options(int64_t n_sequences) const {
    return {.prefill_chunk = 100, .kv_dtype = GetParam().kv_dtype, .n_sequences = n_sequences};
  }

  // Results by request; each comes once.
  std::map<size_t, GenerateResult> run(const std::vector<GenerateRequest>& requests,
                                       int64_t n_parallel) {
    Executor executor(model_, *backend_, options(n_parallel));
    std::map<size_t, GenerateResult> results;
    size_t n_asked = 0;
    generate_many(executor,
                  {.n_parallel = n_parallel,
                   .next = [&]() -> std::optional<GenerateRequest> {
                     if (n_asked == requests.size()) return std::nullopt;
                     return requests[n_asked++];
                   },
                   .on_result =
                       [&](size_t i, const GenerateResult& result) {
                         EXPECT_TRUE(results.emplace(i, result).second);
                       },
                   .on_error = [&](size_t i, const Error& error) { errors_[i] = error.what(); }});
    EXPECT_EQ(executor.n_free_pages(), executor.n_pages());
    return results;
  }

  std::unique_ptr<Backend> backend_ = make_cpu_backend();
  Model model_;
  std::map<size_t, std::string> errors_;
};

TEST_P(GenerateManyTest, EachTextIsAsAlone) {
  const std::vector<GenerateRequest> requests = GenerateManyTest::requests();
  std::vector<GenerateResult> alone;
  for (const GenerateRequest& request : requests) {
    Session session(model_, *backend_, options(1));
    alone.push_back(generate(session, request.prompt, request.options, nullptr));
  }
  for (const int64_t n_parallel : {1, 4, 16}) {
    const auto results = run(requests, n_parallel);
    ASSERT_EQ(results.size(), requests.size());
    for (const auto& [i, result] : results) {
      EXPECT_EQ(result.tokens, alone[i].tokens) << i << " of " << n_parallel;
      EXPECT_EQ(result.text, alone[i].text);
      EXPECT_EQ(result.stop_reason, alone[i].stop_reason);
      EXPECT_EQ(result.prompt_tokens, std::ssize(requests[i].prompt));
      ASSERT_EQ(result.steps.size(), alone[i].steps.size());
      for (size_t t = 0; t < result.steps.size(); ++t) {
        EXPECT_EQ(result.steps[t].logprob, alone[i].steps[t].logprob);
      }
    }
  }
}

TEST_P(GenerateManyTest, EvaluatesACommonBeginningOnce) {
  std::vector<GenerateRequest> requests = GenerateManyTest::requests();
  requests = {requests[1], requests[4], requests[7]};
  for (GenerateRequest& request : requests) request.options.n_predict = 20;
  const auto results = run(requests, 3);
  EXPECT_EQ(results.at(0).reused_tokens, 0);
  const int64_t common = GetParam().window > 0 ? 0 : 256;  // two whole pages, while they are there
  EXPECT_EQ(results.at(1).reused_tokens, common);
  EXPECT_EQ(results.at(2).reused_tokens, common);
  EXPECT_EQ(run(requests, 1).at(1).reused_tokens, 0);
}

TEST_P(GenerateManyTest, WhatIsNotFiniteEndsItsOwnTextAlone) {
  constexpr TokenId kBad = 77;
  std::vector<GenerateRequest> requests = GenerateManyTest::requests();
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].options.sampler.logit_bias = {{kBad, kNever}};
    for (TokenId& id : requests[i].prompt) id = id == kBad ? 5 : id;
  }
  const auto without = run(requests, 4);
  requests[3].prompt.back() = kBad;                         // fails as it is read
  requests[6].options.sampler.logit_bias = {{kBad, 1e9f}};  // and as it is continued
  requests[6].options.n_predict = 3;
  HostTensor embedding = random_normal(3, {kVocabSize, 80});
  model_.weights.embedding = backend_->pack_matrix(embedding);
  const auto want = run(requests, 4);
  std::fill_n(embedding.as<float>() + kBad * 80, 80, std::numeric_limits<float>::quiet_NaN());
  model_.weights.embedding = backend_->pack_matrix(embedding);
  errors_.clear();
  const auto results = run(requests, 4);
  EXPECT_EQ(errors_.size(), 2u);
  EXPECT_TRUE(errors_[3].starts_with(cat("position ", requests[3].prompt.size() - 1, ": not a")))
      << errors_[3];
  EXPECT_TRUE(errors_[6].starts_with(cat("position ", requests[6].prompt.size(), ": not a")))
      << errors_[6];
  EXPECT_EQ(results.size(), requests.size() - 2);
  for (const auto& [i, result] : results) EXPECT_EQ(result.tokens, want.at(i).tokens) << i;
}

TEST_P(GenerateManyTest, AnInterruptEndsWhatIsUnderWay) {
  const std::vector<GenerateRequest> requests = GenerateManyTest::requests();
  std::atomic<bool> interrupted = false;
  Executor executor(model_, *backend_, options(4));
  std::map<size_t, StopReason> ends;
  size_t n_asked = 0;
  generate_many(executor,
                {.n_parallel = 4,
                 .interrupted = &interrupted,
                 .next = [&]() -> std::optional<GenerateRequest> { return requests.at(n_asked++); },
                 .on_result =
                     [&](size_t i, const GenerateResult& result) {
                       ends[i] = result.stop_reason;
                       if (ends.size() == 3) interrupted = true;
                     },
                 .on_error = {}});
  EXPECT_EQ(ends.size(), n_asked);
  EXPECT_LE(n_asked, 8u);
  EXPECT_GE(
      std::ranges::count(ends, StopReason::Interrupted, [](const auto& end) { return end.second; }),
      1);
}

// A step behind whose every token the next higher id follows, by the logits and by the plan's own
// choice. Of texts behind a prompt of two tokens, the token behind position p has draw p - 1.
struct CountingPlan final : RowsPlan {
  explicit CountingPlan(int64_t& n_chosen) : n_chosen_(n_chosen) {}
  int64_t max_rows() const override { return 4; }
  std::span<const float> step(std::span<const DecodeRow> rows) override {
    logits_.assign(rows.size() * kVocabSize, 0.0f);
    for (size_t i = 0; i < rows.size(); ++i) {
      logits_[i * kVocabSize + size_t(rows[i].token + 1) % kVocabSize] = 100;
    }
    return logits_;
  }
  std::span<const float> step_of_sequence(std::span<const DecodeRow> rows) override {
    return step(rows);
  }
  std::span<const TokenId> choose(std::span<const DecodeRow> rows,
                                  std::span<const DecodeSampling> samplings) override {
    EXPECT_EQ(samplings.size(), rows.size());
    chosen_.clear();
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(int64_t(samplings[i].first_draw), rows[i].pos - 1);
      chosen_.push_back((rows[i].token + 1) % kVocabSize);
    }
    n_chosen_ += std::ssize(rows);
    return chosen_;
  }
  std::span<const TokenId> choose_of_sequence(std::span<const DecodeRow> rows,
                                              const DecodeSampling& sampling) override {
    return choose(rows, {&sampling, 1});
  }
  int64_t& n_chosen_;
  std::vector<float> logits_;
  std::vector<TokenId> chosen_;
};
struct CountingBackend final : HalfBackend {
  CountingBackend() : HalfBackend(DType::F16) {}
  std::unique_ptr<RowsPlan> plan_rows(const DecodeModel&) override {
    return std::make_unique<CountingPlan>(n_chosen);
  }
  int64_t n_chosen = 0;
};

// All of five texts, unless one of them needs its logits: then the host chooses for those beside
// it.
TEST(GenerateMany, TakesTheTokensThatTheBackendChooses) {
  CountingBackend backend;
  const ModelSpec spec = llama_spec({.dim = 32,
                                     .ffn_dim = 32,
                                     .n_heads = 2,
                                     .n_kv_heads = 2,
                                     .head_dim = 16,
                                     .vocab_size = kVocabSize,
                                     .trained_seq_len = 100});
  Model model = make_synthetic_model(spec, DType::F16, backend, 1);
  std::vector<std::string> pieces;
  for (int64_t id = 0; id < kVocabSize; ++id) pieces.push_back(cat(id, ' '));
  model.tokenizer = std::make_unique<ToyTokenizer>(std::move(pieces));
  const auto n_chosen = [&](size_t with_logprobs) {
    backend.n_chosen = 0;
    Executor executor(model, backend, {.n_sequences = 3});
    size_t n_asked = 0, n_ended = 0;
    const auto next = [&]() -> std::optional<GenerateRequest> {
      if (n_asked == 5) return std::nullopt;
      GenerateRequest request{.prompt = {3, 4}, .options = {}};
      request.options.n_predict = int64_t(10 + n_asked);
      request.options.ignore_eos = true;
      request.options.n_logprobs = n_asked++ == with_logprobs ? 1 : 0;
      return request;
    };
    const auto on_result = [&](size_t i, const GenerateResult& result) {
      ++n_ended;
      ASSERT_EQ(result.tokens.size(), 10 + i);
      EXPECT_EQ(result.steps.size(), i == with_logprobs ? 10 + i : 0);
      EXPECT_EQ(result.decode_steps, int64_t(9 + i));
      EXPECT_GT(result.decode_seconds, 0);
      for (size_t t = 1; t < result.tokens.size(); ++t) {
        EXPECT_EQ(result.tokens[t], (result.tokens[t - 1] + 1) % kVocabSize) << i << ' ' << t;
      }
    };
    generate_many(executor,
                  {.n_parallel = 3, .next = next, .on_result = on_result, .on_error = {}});
    EXPECT_EQ(n_ended, 5u);
    return backend.n_chosen;
  };
  EXPECT_EQ(n_chosen(5), 9 + 10 + 11 + 12 + 13);
  EXPECT_EQ(n_chosen(4), 9 + 10 + 11);  // from where the last one begins on, the host chooses
}

INSTANTIATE_TEST_SUITE_P(Models, GenerateManyTest,
                         testing::Values(Case{"llama", true, 0, DType::F16, {DType::F16}},
                                         Case{"gpt2", false, 0, DType::F32, {DType::F32}},
                                         Case{"int8_cache", true, 0, DType::U8, {DType::U4, 32}},
                                         Case{"window", true, 60, DType::F16, {DType::U8, 32}}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace minfer::test
