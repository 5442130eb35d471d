#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "engine/perplexity.h"
#include "tests/support/test_data.h"

namespace minfer::test {
namespace {

struct ReferenceCase {
  const char* name;  // of the folder below tinyllamas
  const char* model;
  const char* tokenizer;  // empty: the model's own
  size_t index;           // in computed-here.json
  // Mean NLL of the first windows, by NumPy in float64 from the same tokens.
  size_t n_windows;
  double gptq, llamacpp;
};

// Mean NLLs of WikiText-2 under small models, against float64 that shares no code with the engine:
// of the first windows, or with MINFER_LONG_TESTS=1 of those that computed-here.json has (20 s).
class PerplexityData : public testing::TestWithParam<ReferenceCase> {};

TEST_P(PerplexityData, AgreesWithFloat64) {
  const ReferenceCase& reference = GetParam();
  const auto folder = data_dir() / "tinyllamas" / reference.name;
  const auto text_path = data_dir() / "wikitext-2-raw/wiki.test.raw";
  const auto expected_path = data_dir() / "expected/computed-here.json";
  for (const auto& path : {folder / reference.model, text_path, expected_path}) MINFER_NEEDS(path);
  const char* asked = std::getenv("MINFER_LONG_TESTS");
  const bool is_long = asked != nullptr && *asked != '\0';
  const nlohmann::json expected =
      nlohmann::json::parse(read_file(expected_path)).at("results").at(reference.index);

  const auto backend = make_cpu_backend();
  const std::string tokenizer =
      *reference.tokenizer == '\0' ? "" : (folder / reference.tokenizer).string();
  const Model model = load_model((folder / reference.model).string(), *backend,
                                 {.tokenizer_path = tokenizer, .progress = {}});
  std::string text = read_file(text_path);
  if (!is_long) text.resize(reference.n_windows * 512 * 8);  // bytes: more than those tokens have
  Session session(model, *backend, {.max_seq_len = 512, .kv_dtype = DType::F32});
  for (const Convention convention : {Convention::Gptq, Convention::LlamaCpp}) {
    const bool is_gptq = convention == Convention::Gptq;
    const ScoringPlan plan = plan_scoring(text, *model.tokenizer,
                                          {.convention = convention, .ctx = 512, .raw_text = true});
    if (is_long) {
      EXPECT_EQ(plan.n_tokens, expected.at("tokens_with_bos"));
      EXPECT_EQ(plan.windows.size(), expected.at("windows_in_file"));
    }
    const size_t n_windows =
        is_long ? expected.at("windows_used").get<size_t>() : reference.n_windows;
    const Perplexity result = evaluate_perplexity(std::span(plan.windows).first(n_windows),
                                                  std::array{&session}, nullptr, {.n_threads = 2})
                                  .front();
    const double mean =
        is_long ? expected.at(is_gptq ? "plain" : "llama_cpp").at("mean_nll").get<double>()
                : (is_gptq ? reference.gptq : reference.llamacpp);
    EXPECT_NEAR(result.value() / std::exp(mean), 1, 1e-5) << convention_name(convention);
    RecordProperty(convention_name(convention), cat(result.nll.mean() - mean));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, PerplexityData,
    testing::Values(ReferenceCase{"stories260K", "stories260K.bin", "tok512.model", 0, 8,
                                  4.845990623796646, 4.742192650552741},
                    ReferenceCase{"TinyStories-656K", "hf-bf16", "", 1, 8, 6.519786408196678,
                                  6.449268387090853},
                    ReferenceCase{"llama-2-tiny-random", "llama-2-tiny-random.gguf", "", 2, 2,
                                  10.364177045683984, 10.363295410461506}),
    [](const auto& info) {
      std::string name = info.param.name;
      std::erase(name, '-');
      return name;
    });

}  // namespace
}  // namespace minfer::test
