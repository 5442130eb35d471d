#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/generate.h"
#include "engine/perplexity.h"
#include "tests/support/test_data.h"

namespace minfer::test {
namespace {

// A real chat model against float64 values of another implementation on the same dequantized file.
class SmolLm2 : public testing::Test {
 protected:
  void SetUp() override {
    const auto expected = data_dir() / "expected/smollm2.json";
    text_path_ = data_dir() / "wikitext-2-raw/wiki.test.raw";
    MINFER_NEEDS(expected);
    MINFER_NEEDS(text_path_);
    MINFER_NEEDS(smollm2_path());
    expected_ = nlohmann::json::parse(read_file(expected));
    model_ = load_model(smollm2_path().string(), *backend_);
  }

  std::unique_ptr<Backend> backend_ = make_cpu_backend();
  std::filesystem::path text_path_;
  nlohmann::json expected_;
  Model model_;
};

TEST_F(SmolLm2, GreedyTokensAreTheReferenceOnesAsFarAsTheyAreSafe) {
  for (const auto& test_case : expected_.at("greedy")) {
    SCOPED_TRACE(test_case.at("prompt").get<std::string>());
    const auto prompt = test_case.at("prompt_ids").get<std::vector<TokenId>>();
    const auto ids = test_case.at("ids").get<std::vector<TokenId>>();
    const auto n_safe = test_case.at("safe_tokens").get<size_t>();
    Session session(model_, *backend_, {.max_seq_len = 256});
    GenerateOptions options;
    options.n_predict = std::ssize(ids);
    options.sampler.temperature = 0;
    GenerateResult result = generate(session, prompt, options, nullptr);
    // The reference lists the end token, ours do not.
    if (result.stop_reason == StopReason::Eos) result.tokens.push_back(model_.tokenizer->eos());
    ASSERT_GE(result.tokens.size(), n_safe);
    for (size_t i = 0; i < n_safe; ++i) EXPECT_EQ(result.tokens[i], ids[i]) << "token " << i;
    if (n_safe == ids.size()) {
      EXPECT_EQ(result.text, test_case.at("text").get<std::string>());
    }
  }
}

TEST_F(SmolLm2, LogLikelihoodsOfWindowsAgreeWithFloat64) {
  const nlohmann::json& expected = expected_.at("perplexity");
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
      plan_scoring(read_file(text_path_), *model_.tokenizer, {.ctx = ctx, .raw_text = true});
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
