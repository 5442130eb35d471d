#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/generate.h"
#include "tests/support/test_data.h"

namespace minfer::test {
namespace {

std::vector<std::string> as_list(const nlohmann::json& value) {
  return value.is_array() ? value.get<std::vector<std::string>>()
                          : std::vector<std::string>{value.get<std::string>()};
}

std::string greedy_text(const Model& model, Backend& backend, const std::string& prompt,
                        int64_t n_predict, DType kv_dtype = DType::F16) {
  Session session(model, backend, {.kv_dtype = kv_dtype});
  GenerateOptions options;
  options.n_predict = n_predict;
  options.sampler.temperature = 0;
  return generate(session, model.tokenizer->encode(prompt, {}), options, nullptr).text;
}

// Texts that other engines wrote, from every file and tokenizer that gives them.
TEST(GreedyText, EqualsThePublishedTexts) {
  const auto path = data_dir() / "expected/greedy-text.json";
  MINFER_NEEDS(path);
  const auto backend = make_cpu_backend();
  int n_runs = 0;
  const nlohmann::json published = nlohmann::json::parse(read_file(path));
  for (const auto& test_case : published.at("cases")) {
    std::vector<std::string> tokenizers = {""};
    if (test_case.at("tokenizer").is_array()) tokenizers = as_list(test_case.at("tokenizer"));
    for (const std::string& file : as_list(test_case.at("model"))) {
      for (const std::string& tokenizer : tokenizers) {
        SCOPED_TRACE(cat(file, " with ", tokenizer));
        LoadOptions options;
        if (!tokenizer.empty()) options.tokenizer_path = (data_dir() / tokenizer).string();
        const Model model = load_model((data_dir() / file).string(), *backend, options);
        EXPECT_EQ(greedy_text(model, *backend, test_case.at("prompt"), test_case.at("new_tokens")),
                  test_case.at("expected_text").get<std::string>());
        ++n_runs;
      }
    }
  }
  EXPECT_EQ(n_runs, 8);
}

// The tokenizer inside stories260K.gguf is the same vocabulary once more.
TEST(GreedyText, GgufBringsItsOwnTokenizer) {
  const auto path = data_dir() / "tinyllamas/stories260K/stories260K.gguf";
  MINFER_NEEDS(path);
  const auto backend = make_cpu_backend();
  const Model model = load_model(path.string(), *backend);
  EXPECT_EQ(greedy_text(model, *backend, "", 12), "Once upon a time, there was a little girl");
}

TEST(GreedyText, IsTheSameFromEveryUnquantizedFile) {
  const auto dir = data_dir() / "tinyllamas/TinyStories-656K";
  MINFER_NEEDS(dir);
  const auto backend = make_cpu_backend();
  std::vector<std::string> texts;
  for (const char* file : {"hf-bf16", "hf-fp32", "gguf/TinyStories-656K.f16.gguf"}) {
    const Model model = load_model((dir / file).string(), *backend);
    for (const DType kv_dtype : {DType::F16, DType::F32}) {
      texts.push_back(greedy_text(model, *backend, "Once upon a time", 200, kv_dtype));
    }
  }
  EXPECT_NE(texts[0].find(" with her mom, dad,"), std::string::npos) << texts[0];
  for (const std::string& text : texts) EXPECT_EQ(text, texts[0]);
}

}  // namespace
}  // namespace minfer::test
