#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/generate.h"
#include "tests/support/test_data.h"

// A real chat model and what another implementation gives in float64 on the same dequantized file.
namespace minfer::test {

inline std::filesystem::path wikitext_path() { return data_dir() / "wikitext-2-raw/wiki.test.raw"; }
inline std::filesystem::path smollm2_reference_path() {
  return data_dir() / "expected/smollm2.json";
}
inline nlohmann::json smollm2_reference() {
  return nlohmann::json::parse(read_file(smollm2_reference_path()));
}

#define MINFER_NEEDS_SMOLLM2()            \
  MINFER_NEEDS(smollm2_reference_path()); \
  MINFER_NEEDS(wikitext_path());          \
  MINFER_NEEDS(smollm2_path())

// Greedy tokens as far as the reference's two best logits are apart.
inline void expect_smollm2_tokens(const Model& model, Backend& backend,
                                  const SessionOptions& session_options) {
  const nlohmann::json reference = smollm2_reference();
  for (const auto& test_case : reference.at("greedy")) {
    SCOPED_TRACE(test_case.at("prompt").get<std::string>());
    const auto prompt = test_case.at("prompt_ids").get<std::vector<TokenId>>();
    const auto ids = test_case.at("ids").get<std::vector<TokenId>>();
    const auto n_safe = test_case.at("safe_tokens").get<size_t>();
    Session session(model, backend, session_options);
    GenerateOptions options;
    options.n_predict = std::ssize(ids);
    options.sampler.temperature = 0;
    GenerateResult result = generate(session, prompt, options, nullptr);
    // The reference lists the end token, ours do not.
    if (result.stop_reason == StopReason::Eos) result.tokens.push_back(model.tokenizer->eos());
    ASSERT_GE(result.tokens.size(), n_safe);
    for (size_t i = 0; i < n_safe; ++i) EXPECT_EQ(result.tokens[i], ids[i]) << "token " << i;
    if (n_safe == ids.size()) {
      EXPECT_EQ(result.text, test_case.at("text").get<std::string>());
    }
  }
}

}  // namespace minfer::test
