#include "tests/engine/smollm2.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "engine/perplexity.h"

namespace minfer::test {
namespace {

// A real chat model against float64 values of another implementation on the same dequantized file.
class SmolLm2 : public testing::Test {
 protected:
  void SetUp() override {
    MINFER_NEEDS_SMOLLM2();
    model_ = load_model(smollm2_path().string(), *backend_);
  }

  std::unique_ptr<Backend> backend_ = make_cpu_backend();
  Model model_;
};

TEST_F(SmolLm2, GreedyTokensAreTheReferenceOnesAsFarAsTheyAreSafe) {
  expect_smollm2_tokens(model_, *backend_, {.max_seq_len = 256});
}

TEST_F(SmolLm2, LogLikelihoodsOfWindowsAgreeWithFloat64) {
  const nlohmann::json expected = smollm2_reference().at("perplexity");
  const auto ctx = expected.at("ctx").get<int64_t>();
  Session session(model_, *backend_, {.max_seq_len = ctx, .kv_dtype = DType::F32});
  const auto sum_nll = [&](const ScoringWindow& window) {
    return evaluate_perplexity({&window, 1}, std::array{&session}, nullptr, {.n_threads = 2})
        .front()
        .nll.sum();
  };
  const auto expect_near = [&](const std::string& name, double ours, double reference) {
    EXPECT_NEAR(ours, reference, 1e-4 * reference) << name;
    RecordProperty(name, cat(ours / reference - 1));
  };

  const ScoringPlan plan =
      plan_scoring(read_file(wikitext_path()), *model_.tokenizer, {.ctx = ctx, .raw_text = true});
  EXPECT_EQ(plan.bos, "none");
  EXPECT_EQ(plan.windows.size(), expected.at("windows_in_file"));
  for (const auto& reference : expected.at("float64_windows")) {
    const auto index = reference.at("window").get<size_t>();
    const auto sum = reference.at("sum_nll_all_511").get<double>();
    expect_near(cat("all_511_of_window_", index), sum_nll(plan.windows[index]), sum);
  }
  ScoringWindow second_half = plan.windows.front();
  second_half.first_scored = ctx / 2 + 1;  // as the convention llamacpp, without a BOS
  const nlohmann::json& first = expected.at("float64_windows").front();
  expect_near("llamacpp_255", sum_nll(second_half), first.at("sum_nll_llamacpp_255").get<double>());
  ScoringWindow start = plan.windows.front();
  start.tokens.resize(9);
  double first_8 = 0;
  for (const double nll : first.at("first_8_nll")) first_8 += nll;
  expect_near("first_8", sum_nll(start), first_8);
}

}  // namespace
}  // namespace minfer::test
