#include "engine/generate.h"

#include <gtest/gtest.h>

#include <numeric>

#include "engine/session.h"
#include "models/synthetic.h"
#include "tests/engine/toy_tokenizer.h"
#include "tests/support/expect_error.h"
#include "tests/support/specs.h"
#include "tests/support/tensors.h"

namespace minfer::test {
namespace {

// A model that says 2, 3, 4, ... and then 1: with no weight in its blocks the residual stream is
// the embedding, and the output matrix maps each token to the next.
class GenerateTest : public testing::Test {
 protected:
  static constexpr int64_t kVocabSize = 32;

  void say(std::vector<std::string> words) {
    const ModelSpec spec = llama_spec({.dim = kVocabSize,
                                       .ffn_dim = kVocabSize,
                                       .n_layers = 1,
                                       .n_heads = 2,
                                       .n_kv_heads = 2,
                                       .head_dim = 16,
                                       .vocab_size = kVocabSize,
                                       .trained_seq_len = 24});
    model_ = make_synthetic_model(spec, DType::F32, *backend_, 1);
    HostTensor zeros = from_values(std::vector<float>(kVocabSize * kVocabSize), {32, 32});
    model_.weights.layers[0].wo.weight = backend_->pack_matrix(zeros);
    model_.weights.layers[0].w_down.weight = backend_->pack_matrix(zeros);
    const auto last = static_cast<int64_t>(words.size()) + 1;
    HostTensor identity = from_values(std::vector<float>(kVocabSize * kVocabSize), {32, 32});
    HostTensor next = from_values(std::vector<float>(kVocabSize * kVocabSize), {32, 32});
    for (int64_t i = 0; i < kVocabSize; ++i) {
      const int64_t then = i == 0 ? 2 : i == last ? 1 : i + 1;
      identity.as<float>()[i * kVocabSize + i] = 1;
      next.as<float>()[then % kVocabSize * kVocabSize + i] = 1;
    }
    model_.weights.embedding = backend_->pack_matrix(identity);
    model_.weights.output = backend_->pack_matrix(next);
    words.insert(words.begin(), {"<s>", "</s>"});
    model_.tokenizer = std::make_unique<ToyTokenizer>(std::move(words));
    options_.sampler.temperature = 0;
  }

  GenerateResult run(std::vector<TokenId> prompt = {0}) {
    streamed_.clear();
    Session session(model_, *backend_, {});
    GenerateResult result = generate(session, prompt, options_, [&](const GeneratedToken& token) {
      streamed_.push_back(token.text);
    });
    EXPECT_EQ(std::accumulate(streamed_.begin(), streamed_.end(), std::string()), result.text);
    return result;
  }

  std::unique_ptr<Backend> backend_ = make_cpu_backend();
  Model model_;
  GenerateOptions options_;
  std::vector<std::string> streamed_;
};

TEST_F(GenerateTest, EndsAtTheEndToken) {
  say({"one", " two", " three"});
  const GenerateResult result = run();
  EXPECT_EQ(result.text, "one two three");
  EXPECT_EQ(result.tokens, (std::vector<TokenId>{2, 3, 4}));
  EXPECT_STREQ(stop_reason_name(result.stop_reason), "eos");
  EXPECT_EQ(result.prompt_tokens, 1);
  EXPECT_EQ(result.decode_steps, 3);
  EXPECT_EQ(streamed_, (std::vector<std::string>{"one", " two", " three"}));
}

TEST_F(GenerateTest, EndsAtATokenOfTheChat) {
  say({"one", " two", " three"});
  options_.end_ids = {4};
  EXPECT_EQ(run().text, "one two");
}

TEST_F(GenerateTest, IgnoredEndTokensAreNeverChosen) {
  say({"one", " two"});
  options_.ignore_eos = true;
  options_.n_predict = 6;
  const GenerateResult result = run();
  EXPECT_EQ(result.stop_reason, StopReason::Length);
  EXPECT_EQ(result.tokens.size(), 6u);
  EXPECT_EQ(std::count(result.tokens.begin(), result.tokens.end(), 1), 0);
}

TEST_F(GenerateTest, EndsAtTheLength) {
  say({"one", " two", " three"});
  options_.n_predict = 2;
  const GenerateResult result = run();
  EXPECT_EQ(result.text, "one two");
  EXPECT_EQ(result.stop_reason, StopReason::Length);
  EXPECT_EQ(result.decode_steps, 1);  // the last token needs no pass of its own
  options_.n_predict = 0;
  EXPECT_EQ(run().tokens.size(), 0u);
  EXPECT_EQ(run().stop_reason, StopReason::Length);
}

TEST_F(GenerateTest, EndsAtTheContext) {
  say({"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"});
  options_.n_predict = -1;
  const std::vector<TokenId> prompt(20, 0);  // 4 of 24 positions are left
  const GenerateResult result = run(prompt);
  EXPECT_EQ(result.stop_reason, StopReason::Context);
  EXPECT_EQ(result.text, "abcde");  // the last one is chosen but needs no position
  expect_error(ErrorKind::Usage, "25 tokens after 0 do not fit the context of 24",
               [&] { run(std::vector<TokenId>(25, 0)); });
}

TEST_F(GenerateTest, EndsWhenInterrupted) {
  say({"one", " two", " three"});
  std::atomic<bool> interrupted = false;
  options_.interrupted = &interrupted;
  Session session(model_, *backend_, {});
  const std::vector<TokenId> prompt = {0};
  const GenerateResult result =
      generate(session, prompt, options_, [&](const GeneratedToken&) { interrupted = true; });
  EXPECT_EQ(result.text, "one");
  EXPECT_EQ(result.stop_reason, StopReason::Interrupted);
  EXPECT_EQ(result.decode_seconds > 0, result.decode_steps > 0);
}

TEST_F(GenerateTest, StopStringsAreNeverHalfPrinted) {
  say({"one #", "#", "# two"});
  options_.stop = {"###"};
  const GenerateResult result = run();
  EXPECT_EQ(result.text, "one ");
  EXPECT_EQ(result.stop_reason, StopReason::Stop);
  EXPECT_EQ(result.tokens.size(), 3u);
  EXPECT_EQ(streamed_, (std::vector<std::string>{"one ", "", ""}));
}

TEST_F(GenerateTest, WhatWasHeldBackComesAtTheEnd) {
  say({"one #", "#"});
  options_.stop = {"###"};
  EXPECT_EQ(run().text, "one ##");
  EXPECT_EQ(streamed_, (std::vector<std::string>{"one ", "", "##"}));
}

TEST_F(GenerateTest, StreamsWholeCharacters) {
  say({"\xe2\x82", "\xac", " \xf0\x9f", "!"});  // a euro sign in two parts, half of an emoji
  EXPECT_EQ(run().text, "\u20ac \ufffd!");
  EXPECT_EQ(streamed_[0], "");
  EXPECT_EQ(streamed_[1], "\u20ac");
}

TEST_F(GenerateTest, PaddingRowsOfTheEmbeddingAreNeverChosen) {
  say({"one", " two"});  // ids 4 to 31 have a row but no piece
  std::vector<float> next(kVocabSize * kVocabSize);
  for (int64_t i = 0; i < kVocabSize; ++i) {
    next[size_t(20 * kVocabSize + i)] = 5;  // what the model would say
    next[size_t(3 * kVocabSize + i)] = 1;
  }
  model_.weights.output = backend_->pack_matrix(from_values(next, {32, 32}));
  options_.n_predict = 5;
  options_.n_logprobs = 40;
  const GenerateResult result = run();
  EXPECT_EQ(result.tokens, std::vector<TokenId>(5, 3));
  EXPECT_EQ(result.steps[0].top.size(), 4u);
}

TEST_F(GenerateTest, TokensWithoutARowOfTheEmbeddingAreNeverChosenAndRefusedInAPrompt) {
  say({"a", "b"});
  for (const size_t n_tokens : {33u, 40u, 1000u}) {
    model_.tokenizer = std::make_unique<ToyTokenizer>(std::vector<std::string>(n_tokens, "x"));
    options_ = {};
    options_.n_predict = 20;
    options_.end_ids = {32, static_cast<TokenId>(n_tokens) - 1};
    options_.ignore_eos = true;  // of ids without a logit too
    options_.sampler.temperature = 100;
    options_.sampler.top_k = 0;
    const GenerateResult result = run();
    EXPECT_EQ(result.tokens.size(), 20u);
    for (const TokenId id : result.tokens) EXPECT_LT(id, kVocabSize);
    options_.n_logprobs = 50;
    for (const GeneratedToken& step : run().steps) {
      for (const TokenLogprob& top : step.top) EXPECT_LT(top.id, kVocabSize);
    }
    expect_error(ErrorKind::Usage, "token id 32 is not below the vocabulary size 32", [&] {
      run({0, 32});
    });
  }
}

TEST_F(GenerateTest, ReportsLogprobs) {
  say({"one", " two", " three"});
  options_.n_logprobs = 3;
  const GenerateResult result = run();
  ASSERT_EQ(result.steps.size(), result.tokens.size());
  for (size_t i = 0; i < result.steps.size(); ++i) {
    const GeneratedToken& step = result.steps[i];
    EXPECT_EQ(step.id, result.tokens[i]);
    ASSERT_EQ(step.top.size(), 3u);
    EXPECT_EQ(step.top[0].id, step.id);
    EXPECT_DOUBLE_EQ(step.top[0].logprob, step.logprob);
    EXPECT_LE(step.top[1].logprob, step.top[0].logprob);
  }
}

TEST_F(GenerateTest, NeedsATokenizer) {
  say({"one"});
  model_.tokenizer = nullptr;
  expect_error(ErrorKind::Input, "the model has no tokenizer", [&] { run(); });
}

}  // namespace
}  // namespace minfer::test
