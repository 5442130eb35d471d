// Tokenizers of Hugging Face directories in the keys of a GGUF file: the same ids come back.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "models/tokenizer/tokenizer.h"
#include "tests/support/expect_error.h"
#include "tests/support/test_data.h"

namespace minfer {
namespace {

using nlohmann::json;
using namespace test;

std::unique_ptr<Tokenizer> fixture(const std::string& name) {
  return load_tokenizer(fixtures_dir() / "tokenizers" / (name + ".json"));
}

struct ToGguf : testing::TestWithParam<const char*> {};

TEST_P(ToGguf, SameIds) {
  const auto tokenizer = fixture(GetParam());
  const auto again = make_gguf_tokenizer(tokenizer->to_gguf(tokenizer->n_tokens() + 3));
  EXPECT_EQ(again->n_tokens(), tokenizer->n_tokens() + 3);
  EXPECT_EQ(again->bos(), tokenizer->bos());
  EXPECT_EQ(again->eos(), tokenizer->eos());
  EXPECT_EQ(again->adds_bos(), tokenizer->adds_bos());
  const std::string cases =
      read_file(fixtures_dir() / "tokenizers" / (std::string(GetParam()) + ".cases.json"));
  int n_compared = 0;
  for (const json& c : json::parse(cases)) {
    const auto text = c.at("text").get<std::string>();
    const std::vector<TokenId> ids = tokenizer->encode(text, {});
    // GGUF has no word for Qwen2's normal form; a text that is in it already stays.
    if (tokenizer->decode(ids) != text) continue;
    EXPECT_EQ(again->encode(text, {}), ids) << c;
    EXPECT_EQ(again->decode(ids), tokenizer->decode(ids)) << c;
    ++n_compared;
  }
  EXPECT_GE(n_compared, 40);
}

INSTANTIATE_TEST_SUITE_P(Files, ToGguf, testing::Values("llama3", "qwen2", "smollm"));

TEST(ToGguf, SentencePieceModel) {
  const auto dir = data_dir() / "tinyllamas/stories260K";
  MINFER_NEEDS(dir);
  const auto tokenizer = load_tokenizer(dir / "tok512.model");
  const auto again = make_gguf_tokenizer(tokenizer->to_gguf(512));
  // Blanks that this model takes for one have no word in GGUF either.
  for (const char* text : {"Once upon a time", "a blank\n", "\u00e9t\u00e9 \u4e2d", ""}) {
    EXPECT_EQ(again->encode(text, {}), tokenizer->encode(text, {})) << text;
  }
}

// A list of merges over SentencePiece's pieces becomes scores.
TEST(ToGguf, MergesBecomeScores) {
  const auto dir = data_dir() / "tinyllamas/TinyStories-656K/hf-bf16";
  MINFER_NEEDS(dir);
  const auto tokenizer = load_tokenizer(dir / "tokenizer.json");
  const auto again = make_gguf_tokenizer(tokenizer->to_gguf(tokenizer->n_tokens()));
  const std::string book = read_file(data_dir() / "wikitext-2-raw/wiki.test.raw").substr(0, 20000);
  EXPECT_EQ(again->encode(book, {}), tokenizer->encode(book, {}));
}

TEST(ToGguf, RefusesWhatGgufCannotSay) {
  expect_error(ErrorKind::Input, "the pre-tokenizer has no name in GGUF",
               [] { fixture("merged-behaviors")->to_gguf(10000); });
  expect_error(ErrorKind::Input, "pieces, the embedding 5 rows",
               [] { fixture("llama3")->to_gguf(5); });
}

}  // namespace
}  // namespace minfer
