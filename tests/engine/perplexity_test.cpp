#include "engine/perplexity.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "engine/wikitext.h"
#include "tests/engine/scoring_fixture.h"
#include "tests/support/expect_error.h"
#include "tests/support/tensors.h"

namespace minfer::test {
namespace {

using Tokens = std::vector<TokenId>;

class PerplexityTest : public testing::Test {
 protected:
  // -log p(tokens[t] | tokens before it)
  double nll(const Tokens& tokens, size_t t) const {
    return -log_probabilities(model_, *backend_, std::span(tokens).first(t))[size_t(tokens[t])];
  }

  Perplexity evaluate(const ScoringPlan& plan, int n_threads = 2, int64_t chunk = 512) const {
    Session session(model_, *backend_, {.prefill_chunk = chunk, .kv_dtype = DType::F32});
    return evaluate(plan, session, nullptr, {.n_threads = n_threads});
  }

  static Perplexity evaluate(const ScoringPlan& plan, Session& session, Session* reference,
                             const PerplexityOptions& options = {}) {
    return evaluate_perplexity(plan.windows, std::array{&session}, reference, options).front();
  }

  // The f32 of the logits costs some 1e-7 of each of them.
  void expect_equal(const Perplexity& ours, const std::vector<double>& nlls) const {
    double sum = 0;
    for (const double value : nlls) sum += value;
    EXPECT_EQ(ours.nll.n(), std::ssize(nlls));
    EXPECT_NEAR(ours.nll.mean(), sum / double(nlls.size()), 1e-6);
    EXPECT_DOUBLE_EQ(ours.value(), std::exp(ours.nll.mean()));
  }

  std::unique_ptr<Backend> backend_ = make_cpu_backend();
  Model model_ = scoring_model(*backend_, 3);
  std::unique_ptr<Tokenizer> tokenizer_ = scoring_tokenizer(true);
  std::string text_ = some_text(61);
  Tokens tokens_ = tokenizer_->encode(text_, {});  // 62 with BOS
};

TEST_F(PerplexityTest, GptqIsItsDefinition) {
  constexpr size_t kCtx = 20;
  std::vector<double> expected;
  for (size_t window = 0; window < tokens_.size() / kCtx; ++window) {
    const Tokens part(&tokens_[window * kCtx], &tokens_[window * kCtx] + kCtx);
    for (size_t t = 1; t < kCtx; ++t) expected.push_back(nll(part, t));
  }
  expect_equal(evaluate(plan_scoring(text_, *tokenizer_, {.ctx = kCtx})), expected);
}

TEST_F(PerplexityTest, LlamaCppIsItsDefinition) {
  for (const size_t ctx : {20, 21}) {
    std::vector<double> expected;
    for (size_t window = 0; window < tokens_.size() / ctx; ++window) {
      Tokens part(&tokens_[window * ctx], &tokens_[window * ctx] + ctx);
      part[0] = tokenizer_->bos();
      for (size_t pos = ctx / 2; pos <= ctx - 2; ++pos) expected.push_back(nll(part, pos + 1));
    }
    expect_equal(evaluate(plan_scoring(text_, *tokenizer_,
                                       {.convention = Convention::LlamaCpp, .ctx = int64_t(ctx)})),
                 expected);
  }
}

// As the page does it: windows with labels, of which those that an earlier window had are masked.
TEST_F(PerplexityTest, HfStrideIsItsDefinition) {
  for (const auto& [ctx, stride] : {std::pair<size_t, size_t>{20, 7}, {20, 20}, {100, 30}}) {
    std::vector<double> expected;
    size_t previous_end = 0;
    for (size_t begin = 0; begin < tokens_.size(); begin += stride) {
      const size_t end = std::min(begin + ctx, tokens_.size());
      const Tokens input(&tokens_[begin], &tokens_[begin] + (end - begin));
      const size_t n_labels = end - previous_end;
      for (size_t t = 1; t < input.size(); ++t) {
        if (t >= input.size() - n_labels) expected.push_back(nll(input, t));
      }
      previous_end = end;
      if (end == tokens_.size()) break;
    }
    expect_equal(
        evaluate(plan_scoring(
            text_, *tokenizer_,
            {.convention = Convention::HfStride, .ctx = int64_t(ctx), .stride = int64_t(stride)})),
        expected);
  }
}

// As lm-evaluation-harness does it: pairs of input and what it predicts, one token of context, the
// last pair extended to the left.
TEST_F(PerplexityTest, LmEvalIsItsDefinition) {
  constexpr size_t kCtx = 16;
  const std::string text = " = A = \n" + text_ + "\n = B = \nshort\n";
  std::vector<double> expected;
  for (const std::string& page : wikitext_pages(text)) {
    Tokens tokens = tokenizer_->encode(detokenized(page), {.add_bos = false});
    const size_t first = std::min(kCtx, tokens.size());
    Tokens input = {tokenizer_->bos()};
    for (size_t t = 0; t < first; ++t) {
      input.push_back(tokens[t]);
      expected.push_back(nll(input, t + 1));
    }
    for (size_t predicted = first; predicted < tokens.size();) {
      const size_t n = std::min(tokens.size() - predicted, kCtx), end = predicted + n;
      const Tokens window(&tokens[end - kCtx - 1], &tokens[end - 1] + 1);  // input, last target
      for (size_t t = window.size() - n; t < window.size(); ++t) expected.push_back(nll(window, t));
      predicted = end;
    }
  }
  const ScoringPlan plan =
      plan_scoring(text, *tokenizer_, {.convention = Convention::LmEval, .ctx = kCtx});
  EXPECT_EQ(plan.n_pages, 2);
  expect_equal(evaluate(plan), expected);
}

TEST_F(PerplexityTest, SameBitsForAnyThreadsAndChunks) {
  const ScoringPlan plan = plan_scoring(text_, *tokenizer_, {.ctx = 30});
  const Perplexity expected = evaluate(plan, 1);
  EXPECT_EQ(expected.n_evaluated, 2 * 29);
  for (const auto& [n_threads, chunk] : {std::pair{2, 512}, {3, 7}, {5, 1}}) {
    const Perplexity result = evaluate(plan, n_threads, chunk);
    EXPECT_EQ(result.nll.sum(), expected.nll.sum()) << n_threads << " threads, chunk " << chunk;
    EXPECT_EQ(result.standard_error(), expected.standard_error());
  }
}

// Windows that share a pass, also of unequal lengths and beside a reference.
TEST_F(PerplexityTest, SameBitsHoweverManyWindowsShareAPass) {
  const Model other = scoring_model(*backend_, 4);
  for (const ScoringOptions& options :
       {ScoringOptions{.convention = Convention::Gptq, .ctx = 12},
        ScoringOptions{.convention = Convention::LlamaCpp, .ctx = 9},
        ScoringOptions{.convention = Convention::HfStride, .ctx = 16, .stride = 5}}) {
    const ScoringPlan plan = plan_scoring(text_, *tokenizer_, options);
    std::vector<Perplexity> results;
    std::vector<int> n_passes;
    for (const int64_t chunk : {7, 16, 40, 1000}) {
      const SessionOptions session_options = {
          .max_seq_len = options.ctx, .prefill_chunk = chunk, .several_sequences = true};
      Session session(model_, *backend_, session_options);
      Session reference(other, *backend_, session_options);
      n_passes.push_back(0);
      results.push_back(
          evaluate(plan, session, &reference,
                   {.progress = [&](int64_t, int64_t, double) { ++n_passes.back(); }}));
      const Perplexity &one = results.front(), &result = results.back();
      EXPECT_EQ(result.nll.sum(), one.nll.sum()) << chunk;
      EXPECT_EQ(result.standard_error(), one.standard_error()) << chunk;
      EXPECT_EQ(result.difference->kl_divergence.sum(), one.difference->kl_divergence.sum());
      EXPECT_EQ(result.n_evaluated, one.n_evaluated);
    }
    EXPECT_EQ(n_passes[0], std::ssize(plan.windows));
    EXPECT_GT(n_passes[1], n_passes[2]);
    EXPECT_EQ(n_passes[3], 1);
  }
}

TEST(MeanEstimate, StandardErrorIsThatOfTheMean) {
  const std::vector<double> values = {1.5, 2.25, -3, 0.125, 8, 8.5};
  MeanEstimate estimate;
  EXPECT_EQ(estimate.standard_error(), 0);
  double sum = 0;
  for (const double value : values) estimate.add(value), sum += value;
  const double n = double(values.size()), mean = sum / n;
  double sum_sq = 0;
  for (const double value : values) sum_sq += (value - mean) * (value - mean);
  EXPECT_DOUBLE_EQ(estimate.mean(), mean);
  EXPECT_NEAR(estimate.standard_error(), std::sqrt(sum_sq / (n - 1) / n), 1e-14);
  MeanEstimate constant;  // rounding must not make its variance negative
  for (int i = 0; i < 10; ++i) constant.add(0.1);
  EXPECT_NEAR(constant.standard_error(), 0, 1e-9);
}

TEST_F(PerplexityTest, AgainstItselfNothingDiffers) {
  const ScoringPlan plan = plan_scoring(text_, *tokenizer_, {.ctx = 30});
  Session session(model_, *backend_, {}), same(model_, *backend_, {});
  const Perplexity result = evaluate(plan, session, &same);
  ASSERT_TRUE(result.difference);
  EXPECT_EQ(result.difference->nll_difference.mean(), 0);
  EXPECT_EQ(result.difference->nll_difference.standard_error(), 0);
  EXPECT_EQ(result.difference->kl_divergence.mean(), 0);
  EXPECT_EQ(result.difference->n_same_top, result.nll.n());
  EXPECT_EQ(result.difference->reference_nll.sum(), result.nll.sum());
}

TEST_F(PerplexityTest, AgainstAnotherIsTheDefinition) {
  const Model other = scoring_model(*backend_, 4);
  const ScoringPlan plan = plan_scoring(text_, *tokenizer_, {.ctx = 62});
  Session session(model_, *backend_, {.prefill_chunk = 16, .kv_dtype = DType::F32});
  Session reference(other, *backend_, {.prefill_chunk = 20, .kv_dtype = DType::F32});
  const Perplexity result = evaluate(plan, session, &reference);

  double difference = 0, kl_divergence = 0;
  int64_t n_same_top = 0;
  for (size_t t = 1; t < 62; ++t) {
    const auto before = std::span(tokens_).first(t);
    const auto log_q = log_probabilities(model_, *backend_, before);
    const auto log_p = log_probabilities(other, *backend_, before);
    const auto target = size_t(tokens_[t]);
    difference += log_p[target] - log_q[target];
    for (size_t i = 0; i < log_p.size(); ++i) {
      kl_divergence += std::exp(log_p[i]) * (log_p[i] - log_q[i]);
    }
    n_same_top += std::ranges::max_element(log_p) - log_p.begin() ==
                  std::ranges::max_element(log_q) - log_q.begin();
  }
  ASSERT_TRUE(result.difference);
  EXPECT_NEAR(result.difference->nll_difference.sum(), difference, 1e-5);
  EXPECT_NEAR(result.difference->kl_divergence.sum(), kl_divergence, 1e-5);
  EXPECT_EQ(result.difference->n_same_top, n_same_top);
  EXPECT_GT(result.difference->kl_divergence.mean(), 0);
}

TEST_F(PerplexityTest, SeveralModelsAtOnceAreEachAsAlone) {
  const Model other = scoring_model(*backend_, 4);
  const ScoringPlan plan = plan_scoring(text_, *tokenizer_, {.ctx = 30});
  Session first(model_, *backend_, {}), second(other, *backend_, {}), third(model_, *backend_, {});
  const std::vector<Perplexity> together =
      evaluate_perplexity(plan.windows, std::array{&first, &second}, &third, {});
  ASSERT_EQ(together.size(), 2u);
  EXPECT_EQ(together[0].difference->kl_divergence.sum(), 0);
  const Perplexity alone = evaluate(plan, second, &first);
  EXPECT_EQ(together[1].nll.sum(), alone.nll.sum());
  EXPECT_EQ(together[1].difference->kl_divergence.sum(), alone.difference->kl_divergence.sum());
}

TEST_F(PerplexityTest, ReportsEachPass) {
  const ScoringPlan plan = plan_scoring(text_, *tokenizer_, {.ctx = 20});
  Session session(model_, *backend_, {.prefill_chunk = 20});
  std::vector<double> running;
  const auto progress = [&](int64_t done, int64_t total, double value) {
    running.push_back(value);
    EXPECT_EQ(done, std::ssize(running));
    EXPECT_EQ(total, 3);
  };
  const Perplexity result = evaluate(plan, session, nullptr, {.progress = progress});
  ASSERT_EQ(running.size(), 3u);
  EXPECT_EQ(running.back(), result.value());
}

TEST_F(PerplexityTest, NamesWindowPositionAndLayerOfWhatIsNotFinite) {
  HostTensor embedding = random_normal(1, {260, 48});
  embedding.as<float>()[size_t(text_[24]) * 48] = std::nanf("");
  model_.weights.embedding = backend_->pack_matrix(embedding);
  const size_t at = text_.find(text_[24]) + 1;  // BOS comes first
  const std::string where =
      cat("window ", at / 20, ": position ", at % 20, ": not a finite number after layer 0");
  const ScoringPlan plan = plan_scoring(text_, *tokenizer_, {.ctx = 20});
  for (const int64_t chunk : {512, 4}) {
    expect_error(ErrorKind::Numeric, where, [&] { evaluate(plan, 1, chunk); });
  }
  Session session(model_, *backend_, {.max_seq_len = 20, .several_sequences = true});
  expect_error(ErrorKind::Numeric, where, [&] { evaluate(plan, session, nullptr); });
}

TEST_F(PerplexityTest, RefusesModelsOfOtherVocabularies) {
  ModelSpec spec = model_.spec;
  spec.vocab_size = 261;
  const Model other = make_synthetic_model(spec, DType::F16, *backend_, 1);
  Session session(model_, *backend_, {}), reference(other, *backend_, {});
  expect_error(ErrorKind::Usage, "260 and 261 tokens", [&] { evaluate({}, session, &reference); });
}

}  // namespace
}  // namespace minfer::test
