#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/generate.h"
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
  const auto ids = model_.tokenizer->encode(read_file(text_path_), {.add_bos = false});
  const nlohmann::json& perplexity = expected_.at("perplexity");
  const auto ctx = perplexity.at("ctx").get<size_t>();
  const auto vocab_size = static_cast<size_t>(model_.config.vocab_size);
  Session session(model_, *backend_,
                  {.max_seq_len = int64_t(ctx), .prefill_chunk = 128, .kv_dtype = DType::F32});
  for (const auto& window : perplexity.at("float64_windows")) {
    const auto first = window.at("window").get<size_t>() * ctx;
    SCOPED_TRACE(cat("tokens from ", first));
    session.truncate(0);
    std::vector<double> nll;  // of token i + 1 of the window
    for (size_t begin = 0; begin < ctx; begin += 128) {
      const auto logits = session.eval_all({ids.data() + first + begin, 128});
      for (size_t i = 0; i < 128 && begin + i + 1 < ctx; ++i) {
        const TokenId next = ids[first + begin + i + 1];
        nll.push_back(-logprob_of(logits.subspan(i * vocab_size, vocab_size), next));
      }
    }
    const auto sum = [&](size_t begin) {
      double total = 0;
      for (size_t i = begin; i < nll.size(); ++i) total += nll[i];
      return total;
    };
    const auto expect_near = [&](const char* name, double ours) {
      const auto reference = window.at(name).get<double>();
      EXPECT_NEAR(ours, reference, 1e-4 * reference) << name;
      RecordProperty(cat(name, "_", first), cat(ours / reference - 1));
    };
    expect_near("sum_nll_all_511", sum(0));
    expect_near("sum_nll_last_256", sum(255));
    expect_near("sum_nll_llamacpp_255", sum(256));
    for (size_t i = 0; i < 8; ++i) {
      const auto reference = window.at("first_8_nll").at(i).get<double>();
      EXPECT_NEAR(nll[i], reference, 1e-4 * reference) << "token " << i + 1;
    }
  }
}

}  // namespace
}  // namespace minfer::test
