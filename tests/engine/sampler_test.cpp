#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "tests/support/expect_error.h"

namespace minfer::test {
namespace {

SamplerOptions plain() {  // all filters off
  SamplerOptions options;
  options.temperature = 1;
  options.top_k = 0;
  options.top_p = 1;
  options.min_p = 0;
  return options;
}

// Shares of n draws, each from a step of its own.
std::map<TokenId, double> shares(const SamplerOptions& options, const std::vector<float>& logits,
                                 const std::vector<TokenId>& history = {}, int n = 20000) {
  Sampler sampler(options, std::ssize(logits));
  std::map<TokenId, double> result;
  for (int step = 0; step < n; ++step) {
    result[sampler.sample(logits, history, uint64_t(step))] += 1.0 / n;
  }
  return result;
}

std::vector<float> log_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p) + 3));
  return logits;
}

// Five standard deviations of a share of 20,000 draws.
void expect_shares(const std::map<TokenId, double>& found,
                   const std::map<TokenId, double>& wanted) {
  EXPECT_EQ(found.size(), wanted.size());
  for (const auto& [id, p] : wanted) {
    ASSERT_TRUE(found.contains(id)) << "token " << id;
    EXPECT_NEAR(found.at(id), p, 5 * std::sqrt(p * (1 - p) / 20000) + 1e-9) << "token " << id;
  }
}

// Not in order of probability, so that ranks and ids differ.
const std::vector<float> kLogits = log_of({0.05, 0.4, 0.1, 0.3, 0.15});

TEST(Sampler, DrawsFromTheModelsDistribution) {
  expect_shares(shares(plain(), kLogits), {{0, 0.05}, {1, 0.4}, {2, 0.1}, {3, 0.3}, {4, 0.15}});
}

TEST(Sampler, TemperatureSharpens) {
  SamplerOptions options = plain();
  options.temperature = 0.5f;
  const double sum = 0.0025 + 0.16 + 0.01 + 0.09 + 0.0225;
  expect_shares(
      shares(options, kLogits),
      {{0, 0.0025 / sum}, {1, 0.16 / sum}, {2, 0.01 / sum}, {3, 0.09 / sum}, {4, 0.0225 / sum}});
}

TEST(Sampler, TopKKeepsTheBest) {
  SamplerOptions options = plain();
  options.top_k = 2;
  expect_shares(shares(options, kLogits), {{1, 4.0 / 7}, {3, 3.0 / 7}});
  options.top_k = 100;
  EXPECT_EQ(shares(options, kLogits).size(), 5u);
}

TEST(Sampler, TopPKeepsTheSmallestSetThatReachesIt) {
  SamplerOptions options = plain();
  options.top_p = 0.65f;
  expect_shares(shares(options, kLogits), {{1, 4.0 / 7}, {3, 3.0 / 7}});
  options.top_p = 0.75f;
  expect_shares(shares(options, kLogits), {{1, 0.4 / 0.85}, {3, 0.3 / 0.85}, {4, 0.15 / 0.85}});
  options.top_p = 0;
  expect_shares(shares(options, kLogits), {{1, 1.0}});
}

// Of 0.4 + 0.3 + 0.15 the share 0.8 needs two tokens; of all five it would need three.
TEST(Sampler, TopPCountsWithinTopK) {
  SamplerOptions options = plain();
  options.top_k = 3;
  options.top_p = 0.8f;
  expect_shares(shares(options, kLogits), {{1, 4.0 / 7}, {3, 3.0 / 7}});
}

TEST(Sampler, MinPIsRelativeToTheBest) {
  SamplerOptions options = plain();
  options.min_p = 0.3f;
  expect_shares(shares(options, kLogits), {{1, 0.4 / 0.85}, {3, 0.3 / 0.85}, {4, 0.15 / 0.85}});
}

// With the temperature first, top-p 0.65 of the flattened distribution would keep three tokens.
TEST(Sampler, TemperatureComesAfterTheFilters) {
  SamplerOptions options = plain();
  options.top_p = 0.65f;
  options.temperature = 100;
  EXPECT_EQ(shares(options, kLogits).size(), 2u);
}

TEST(Sampler, ZeroTemperatureIsArgmaxWithTiesToTheLowerId) {
  SamplerOptions options = plain();
  options.temperature = 0;
  Sampler sampler(options, 5);
  EXPECT_EQ(sampler.sample(kLogits, {}, 0), 1);
  EXPECT_EQ(sampler.sample(std::vector<float>{1, 7, 3, 7, 7}, {}, 0), 1);
}

TEST(Sampler, RepeatPenaltyMakesBothSignsLessLikely) {
  SamplerOptions options = plain();
  options.temperature = 0;
  options.repeat_penalty = 2;
  const std::vector<float> positive = {1.5f, 2, 0}, negative = {-1.5f, -1, -9};
  Sampler sampler(options, 3);
  EXPECT_EQ(sampler.sample(positive, {}, 0), 1);
  EXPECT_EQ(sampler.sample(positive, std::vector<TokenId>{1}, 0), 0);
  EXPECT_EQ(sampler.sample(negative, std::vector<TokenId>{1}, 0), 0);
  // A token counts once for this penalty, however often it came.
  EXPECT_EQ(sampler.sample(std::vector<float>{0.9f, 2, 0}, std::vector<TokenId>{1, 1, 1}, 0), 1);
}

TEST(Sampler, PresenceCountsOnceAndFrequencyEachTime) {
  SamplerOptions options = plain();
  options.presence_penalty = 1;
  options.frequency_penalty = 0.5f;
  const std::vector<float> logits(3, 0.0f);
  // Token 1 came twice: -1 - 2 * 0.5; token 2 once: -1 - 0.5.
  const double a = 1, b = std::exp(-2), c = std::exp(-1.5);
  expect_shares(shares(options, logits, {1, 2, 1}),
                {{0, a / (a + b + c)}, {1, b / (a + b + c)}, {2, c / (a + b + c)}});
}

TEST(Sampler, PenaltiesLookBackAsFarAsAsked) {
  SamplerOptions options = plain();
  options.temperature = 0;
  options.presence_penalty = 5;
  options.repeat_last_n = 2;
  const std::vector<float> logits = {3, 2, 1};
  const std::vector<TokenId> history = {0, 1, 1};
  EXPECT_EQ(Sampler(options, 3).sample(logits, history, 0), 0);
  options.repeat_last_n = 3;
  EXPECT_EQ(Sampler(options, 3).sample(logits, history, 0), 2);
  options.repeat_last_n = -1;
  EXPECT_EQ(Sampler(options, 3).sample(logits, history, 0), 2);
  options.repeat_last_n = 0;
  EXPECT_EQ(Sampler(options, 3).sample(logits, history, 0), 0);
}

TEST(Sampler, BiasForcesAndForbids) {
  SamplerOptions options = plain();
  options.logit_bias = {{1, -INFINITY}, {0, 100.0f}};
  expect_shares(shares(options, kLogits), {{0, 1.0}});
  options.logit_bias = {{1, -INFINITY}};
  expect_shares(shares(options, kLogits),
                {{0, 0.05 / 0.6}, {2, 0.1 / 0.6}, {3, 0.5}, {4, 0.15 / 0.6}});
  options.logit_bias = {{0, -INFINITY}};
  expect_error(ErrorKind::Usage, "leave no token",
               [&] { Sampler(options, 1).sample(std::vector<float>{1}, {}, 0); });
}

TEST(Sampler, DrawsDependOnSeedAndStepAlone) {
  const std::vector<float> logits(1000, 0.0f);
  SamplerOptions options = plain();
  options.seed = 42;
  const auto draws = [&](const SamplerOptions& o) {
    Sampler sampler(o, 1000);
    std::vector<TokenId> ids;
    for (uint64_t step = 0; step < 100; ++step) ids.push_back(sampler.sample(logits, {}, step));
    return ids;
  };
  const std::vector<TokenId> first = draws(options);
  EXPECT_EQ(draws(options), first);
  Sampler late(options, 1000);
  EXPECT_EQ(late.sample(logits, {}, 57), first[57]);
  options.seed = 43;
  EXPECT_NE(draws(options), first);
}

// The sorted prefix grows as it is looked at: a large vocabulary against a full sort.
TEST(Sampler, RanksLargeVocabulariesAsAFullSortDoes) {
  std::mt19937 engine(1);
  std::uniform_int_distribution<int> level(0, 3000);  // with many ties
  std::vector<float> logits;
  for (int i = 0; i < 20000; ++i) logits.push_back(static_cast<float>(level(engine)) / 500);
  std::vector<TokenId> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<TokenId>(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](TokenId a, TokenId b) { return logits[size_t(a)] > logits[size_t(b)]; });
  const auto top = top_logprobs(logits, 20000);
  ASSERT_EQ(top.size(), order.size());
  for (size_t i = 0; i < order.size(); ++i) EXPECT_EQ(top[i].id, order[i]);
  for (const int64_t k : {1, 40, 64, 65, 1000}) {
    SamplerOptions options = plain();
    options.top_k = k;
    Sampler sampler(options, 20000);
    for (uint64_t step = 0; step < 50; ++step) {
      const TokenId id = sampler.sample(logits, {}, step);
      EXPECT_LT(std::find(order.begin(), order.end(), id) - order.begin(), k);
    }
  }
}

TEST(Sampler, LogprobsAreTheModelsOwn) {
  const auto top = top_logprobs(kLogits, 2);
  ASSERT_EQ(top.size(), 2u);
  EXPECT_EQ(top[0].id, 1);
  EXPECT_NEAR(top[0].logprob, std::log(0.4), 1e-6);
  EXPECT_EQ(top[1].id, 3);
  EXPECT_NEAR(logprob_of(kLogits, 4), std::log(0.15), 1e-6);
  EXPECT_EQ(top_logprobs(kLogits, 9).size(), 5u);
}

TEST(Sampler, RefusesNumbersThatAreNone) {
  Sampler sampler(plain(), 3);
  expect_error(ErrorKind::Numeric, "logit of token 1 is", [&] {
    sampler.sample(std::vector<float>{1, NAN, 2}, {}, 0);
  });
  expect_error(ErrorKind::Numeric, "logit of token 0 is", [&] {
    sampler.sample(std::vector<float>{INFINITY, 0, 2}, {}, 0);
  });
}

TEST(Sampler, RefusesOptionsOutOfRange) {
  const auto refused = [](const char* text, auto change) {
    SamplerOptions options;
    change(options);
    expect_error(ErrorKind::Usage, text, [&] { Sampler(options, 10); });
  };
  refused("temperature is -1", [](auto& o) { o.temperature = -1; });
  refused("temperature is nan", [](auto& o) { o.temperature = NAN; });
  refused("top_p is 1.5", [](auto& o) { o.top_p = 1.5f; });
  refused("min_p is -0.1", [](auto& o) { o.min_p = -0.1f; });
  refused("top_k is -1", [](auto& o) { o.top_k = -1; });
  refused("repeat_penalty is 0", [](auto& o) { o.repeat_penalty = 0; });
  refused("presence_penalty is inf", [](auto& o) { o.presence_penalty = INFINITY; });
  refused("frequency_penalty is nan", [](auto& o) { o.frequency_penalty = NAN; });
  refused("repeat_last_n is -2", [](auto& o) { o.repeat_last_n = -2; });
  refused("logit bias of token 10, the vocabulary has 10", [](auto& o) {
    o.logit_bias = {{10, 1.0f}};
  });
  refused("logit bias of token 3 is nan", [](auto& o) { o.logit_bias = {{3, NAN}}; });
  refused("logit bias of token 3 is inf", [](auto& o) { o.logit_bias = {{3, INFINITY}}; });
}

}  // namespace
}  // namespace minfer::test
