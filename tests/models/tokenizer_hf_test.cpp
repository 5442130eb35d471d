// tokenizer.json against Hugging Face's own implementation, on small tokenizers and random texts
// that scripts/make_tokenizer_fixtures.py has written.
#include <nlohmann/json.hpp>

#include "models/tokenizer/tokenizer.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_data.h"

namespace minfer {
namespace {

using nlohmann::json;
using test::expect_error;

struct HfFixture : testing::TestWithParam<const char*> {};

TEST_P(HfFixture, SameIds) {
  const auto dir = test::fixtures_dir() / "tokenizers";
  const auto tokenizer = load_tokenizer(dir / (std::string(GetParam()) + ".json"));
  const json cases = json::parse(test::read_file(dir / (std::string(GetParam()) + ".cases.json")));
  for (const json& c : cases) {
    const auto text = c.at("text").get<std::string>();
    const auto ids = c.at("ids").get<std::vector<TokenId>>();
    EXPECT_EQ(tokenizer->encode(text, {.parse_special = true}), ids) << c;
    // Theirs leaves the unknown token out, ours shows it.
    if (GetParam() != std::string("unknown")) {
      EXPECT_EQ(tokenizer->decode(ids), c.at("decoded").get<std::string>()) << c;
    }
  }
  EXPECT_GE(cases.size(), 50u);
}

INSTANTIATE_TEST_SUITE_P(Files, HfFixture,
                         testing::Values("gpt2", "llama3", "qwen2", "smollm", "prefixed",
                                         "merged-behaviors", "llama2-normalizer", "metaspace-first",
                                         "metaspace-always", "metaspace-whole", "unknown"));

}  // namespace
}  // namespace minfer
