#include <gtest/gtest.h>

#include "models/tokenizer/split.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/expect_error.h"
#include "tests/support/test_data.h"

namespace minfer {
namespace {

using Words = std::vector<std::string>;

struct NamedCase {
  const char* name;
  const char* text;
  Words words;
};

Words split_as(const std::string& name, const std::string& text) {
  Words words;
  const PreTokenizer pre = pre_tokenizer_by_name(name);
  for (const std::string_view word : pre.splitter.split(text)) words.emplace_back(word);
  return words;
}

// Expected: tokenizers 0.22.1 with the patterns of the models' tokenizer.json.
class PreTokenizerName : public testing::TestWithParam<NamedCase> {};

TEST_P(PreTokenizerName, CutsAsTheModelsTokenizerJson) {
  EXPECT_EQ(split_as(GetParam().name, GetParam().text), GetParam().words) << GetParam().name;
}

INSTANTIATE_TEST_SUITE_P(
    All, PreTokenizerName,
    testing::Values(
        NamedCase{"tekken",
                  "HelloWorld 1234 naïveÉTÉ a/\n",
                  {"Hello", "World", " ", "1", "2", "3", "4", " naïve", "ÉTÉ", " a", "/\n"}},
        NamedCase{"gpt-4o", "HelloWorld's 1234", {"Hello", "World's", " ", "123", "4"}},
        NamedCase{"llama4", "ABc'LL", {"ABc'LL"}},
        NamedCase{"deepseek-v3", "12345世界ab .x\n", {"123", "45", "世界", "ab", " .", "x", "\n"}},
        NamedCase{"deepseek-coder", "x=12 世界!", {"x", "=", "1", "2", " ", "世界", "!"}},
        NamedCase{"deepseek-llm", "a 12世!", {"a", " ", "12", "世", "!"}},
        NamedCase{"falcon", "a==b 12345", {"a", "==", "b", " ", "123", "45"}},
        NamedCase{"default", "a==b 12345", {"a", "==", "b", " ", "123", "45"}},
        NamedCase{"smaug-bpe", "it'S 12345", {"it", "'S", " ", "123", "45"}},
        NamedCase{"viking", "ab1, c", {"ab", "1", ",", " c"}},
        NamedCase{"superbpe", "a 1234567", {"a ", "1", "234", "567"}},
        NamedCase{"afmoe", "12345678", {"12", "345", "678"}},
        NamedCase{"kimi-k2", "世界ab中", {"世界", "ab", "中"}},
        NamedCase{"jina-v2-code", "it's 12", {"it", "'s", " 12"}},
        NamedCase{"qwen35", "कि1", {"कि", "1"}}));

TEST(PreTokenizer, FlagsAreThoseOfTheName) {
  EXPECT_TRUE(pre_tokenizer_by_name("tekken").ignore_merges);
  EXPECT_TRUE(pre_tokenizer_by_name("tekken").adds_bos);
  EXPECT_TRUE(pre_tokenizer_by_name("glm4").ignore_merges);
  EXPECT_FALSE(pre_tokenizer_by_name("glm4").adds_bos);
  EXPECT_FALSE(pre_tokenizer_by_name("smaug-bpe").ignore_merges);
  EXPECT_TRUE(pre_tokenizer_by_name("falcon3").ignore_merges);
  for (const char* name : {"gpt-2", "smollm", "llama-bpe", "qwen2", "tekken", "deepseek-v3"}) {
    const PreTokenizer pre = pre_tokenizer_by_name(name);
    EXPECT_EQ(name_of_pre_tokenizer(pre.splitter, pre.ignore_merges), name);
  }
}

TEST(PreTokenizer, AMissingNameIsWarnedOf) {
  Metadata metadata = test::byte_vocabulary({"<s>", "</s>"}), without;
  EXPECT_TRUE(make_gguf_tokenizer(metadata)->warnings().empty());
  for (const char* key : {"model", "tokens", "token_type", "merges"}) {
    const std::string name = std::string("tokenizer.ggml.") + key;
    if (std::string(key) == "model")
      without.set(name, metadata.text(name));
    else if (std::string(key) == "token_type")
      without.set(name, metadata.integers(name));
    else
      without.set(name, metadata.texts(name));
  }
  const auto tokenizer = make_gguf_tokenizer(without);
  ASSERT_EQ(tokenizer->warnings().size(), 1u);
  EXPECT_NE(tokenizer->warnings()[0].find("names no pre-tokenizer"), std::string::npos);
}

TEST(PreTokenizer, FilesFoundInUse) {
  const auto dir = test::data_dir() / "found-in-use";
  MINFER_NEEDS(dir);
  using Ids = std::vector<TokenId>;
  EXPECT_EQ(load_tokenizer(dir / "unicode15-symbols.json")->encode("I love you 🩷", {}),
            (Ids{40, 220, 75, 78, 85, 68, 220, 88, 78, 84, 256, 253, 102, 115}));
  EXPECT_EQ(load_tokenizer(dir / "pre-missing.gguf")->warnings().size(), 1u);
  EXPECT_TRUE(load_tokenizer(dir / "pre-tekken.gguf")->warnings().empty());
  const auto hostile = load_tokenizer(dir / "hostile/tok-redos1.json");
  test::expect_error(ErrorKind::Input, "steps",
                     [&] { hostile->encode(std::string(2000, 'a'), {}); });
}

}  // namespace
}  // namespace minfer
