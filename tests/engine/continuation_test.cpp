#include "engine/continuation.h"

#include <gtest/gtest.h>

#include "tests/engine/scoring_fixture.h"
#include "tests/support/expect_error.h"

namespace minfer::test {
namespace {

using Tokens = std::vector<TokenId>;
constexpr TokenId kAb = 256;

TEST(EncodeContinuation, WhiteSpaceGoesOver) {
  const auto tokenizer = scoring_tokenizer(false);
  const auto tokens = encode_continuation(*tokenizer, "xy  ", "z");
  EXPECT_EQ(tokens.context, (Tokens{'x', 'y'}));
  EXPECT_EQ(tokens.continuation, (Tokens{' ', ' ', 'z'}));
}

TEST(EncodeContinuation, BothAreEncodedAsOneText) {
  const auto tokenizer = scoring_tokenizer(true);
  // "x a" + "bc" is "x ab c": the context's three tokens are cut off, whatever they have become.
  const auto tokens = encode_continuation(*tokenizer, "x a", "bc");
  EXPECT_EQ(tokens.context, (Tokens{kBos, 'x', ' ', 'a'}));
  EXPECT_EQ(tokens.continuation, Tokens{'c'});
  expect_error(ErrorKind::Input, "has no token of its own",
               [&] { encode_continuation(*tokenizer, "x a", "b"); });
  expect_error(ErrorKind::Input, "has no token of its own",
               [&] { encode_continuation(*tokenizer, "x", ""); });
}

TEST(EncodeContinuation, NoContextIsBos) {
  for (const bool adds_bos : {true, false}) {
    const auto tokenizer = scoring_tokenizer(adds_bos);
    const auto tokens = encode_continuation(*tokenizer, "", "ab");
    EXPECT_EQ(tokens.context, Tokens{kBos});
    EXPECT_EQ(tokens.continuation, Tokens{kAb});
  }
}

class ContinuationTest : public testing::Test {
 protected:
  Session session(int64_t max_seq_len = 0, int64_t chunk = 512) const {
    return {model_, *backend_, {.max_seq_len = max_seq_len, .prefill_chunk = chunk}};
  }
  ContinuationScore score_alone(const ContinuationTokens& tokens) const {
    Session fresh = session();
    return ContinuationScorer(fresh).score(tokens);
  }
  std::unique_ptr<Backend> backend_ = make_cpu_backend();
  Model model_ = scoring_model(*backend_, 5);
};

TEST_F(ContinuationTest, IsTheSumOfLogProbabilities) {
  Tokens context = {kBos, 'q', 'r'};
  Tokens greedy;
  double logprob = 0;
  for (int i = 0; i < 4; ++i) {
    Tokens before = context;
    before.insert(before.end(), greedy.begin(), greedy.end());
    const auto logs = log_probabilities(model_, *backend_, before);
    const auto best = std::ranges::max_element(logs);
    greedy.push_back(TokenId(best - logs.begin()));
    logprob += *best;
  }
  Session f32(model_, *backend_, {.kv_dtype = DType::F32});
  const ContinuationScore score = ContinuationScorer(f32).score({context, greedy});
  EXPECT_NEAR(score.logprob, logprob, 1e-5);
  EXPECT_TRUE(score.is_greedy);
  EXPECT_EQ(score.n_tokens, 4);
  greedy.back() = greedy.back() == 'x' ? 'y' : 'x';
  EXPECT_FALSE(score_alone({context, greedy}).is_greedy);
}

TEST_F(ContinuationTest, WhatIsSharedGivesTheSameBits) {
  const std::vector<ContinuationTokens> lines = {
      {{kBos, 'q', 'r', 's'}, {'t', 'u'}},
      {{kBos, 'q', 'r', 's'}, {'v'}},
      {{kBos, 'q', 'r', 's', 't', 'u', 'w'}, {'x', 'y', 'z'}},
      {{kBos, 'q'}, {'r', 's'}},  // its context is all in the cache
      {{kBos, 'q'}, {'r', 's'}},
      {{kBos, 'q', 'a', 'b', 'c'}, {'d'}},  // differs in the middle
      {{'a'}, {'b'}},
  };
  for (const int64_t chunk : {512, 2}) {
    Session shared = session(0, chunk);
    ContinuationScorer scorer(shared);
    for (const ContinuationTokens& line : lines) {
      const ContinuationScore ours = scorer.score(line), alone = score_alone(line);
      EXPECT_EQ(ours.logprob, alone.logprob);
      EXPECT_EQ(ours.is_greedy, alone.is_greedy);
    }
  }
}

TEST_F(ContinuationTest, LongContextLosesItsStart) {
  Session small = session(6);
  ContinuationScorer scorer(small);
  const double cut = scorer.score({{kBos, 'p', 'q', 'r', 's', 't'}, {'u', 'v', 'w'}}).logprob;
  EXPECT_EQ(cut, score_alone({{'q', 'r', 's', 't'}, {'u', 'v', 'w'}}).logprob);
  const Tokens six = {'a', 'c', 'd', 'e', 'f', 'g'};
  EXPECT_EQ(scorer.score({{kBos, 'p'}, six}).logprob, score_alone({{'p'}, six}).logprob);
  expect_error(ErrorKind::Input, "the continuation has 7 tokens, the context holds 6", [&] {
    scorer.score({{kBos}, {'a', 'c', 'd', 'e', 'f', 'g', kEos}});
  });
}

// A tokenizer may have more tokens than the model has rows for.
TEST_F(ContinuationTest, TokensWithoutARowAreRefusedAndChangeNothing) {
  Session shared = session(0, 2);
  ContinuationScorer scorer(shared);
  const auto n_rows = static_cast<TokenId>(model_.spec.vocab_size);
  for (const TokenId id : {n_rows, n_rows + 1, n_rows + 1000}) {
    expect_error(ErrorKind::Input, cat("token ", id, " of the continuation has no logit"), [&] {
      scorer.score({{kBos, 'q'}, {'r', id}});
    });
    expect_error(ErrorKind::Usage, cat("token id ", id, " is not below"), [&] {
      scorer.score({{kBos, 'q', 'x', 'y', id}, {'r'}});
    });
    const ContinuationTokens sound = {{kBos, 'q', 'x', 'z'}, {'r', 's'}};
    EXPECT_EQ(scorer.score(sound).logprob, score_alone(sound).logprob);
  }
}

}  // namespace
}  // namespace minfer::test
