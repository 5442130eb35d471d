// Token ids that others published, and counts over a book.
#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/base/error.h"
#include "loaders/checksum.h"
#include "models/chat/chat_template.h"
#include "models/tokenizer/tokenizer.h"
#include "tests/support/sanitized.h"
#include "tests/support/test_data.h"

namespace minfer {
namespace {

using nlohmann::json;
using test::data_dir;
using test::kSanitizedSlowdown;
using test::read_file;

std::vector<std::string> split(const std::string& text, const std::string& separator) {
  std::vector<std::string> parts;
  size_t at = 0;
  for (size_t found; (found = text.find(separator, at)) != text.npos; at = found + separator.size())
    parts.push_back(text.substr(at, found - at));
  parts.push_back(text.substr(at));
  return parts;
}

std::vector<TokenId> ids_of(const std::string& line) {
  std::istringstream in(line);
  std::vector<TokenId> ids;
  for (TokenId id; in >> id;) ids.push_back(id);
  return ids;
}

std::vector<TokenId> ids_of(const json& list) { return list.get<std::vector<TokenId>>(); }

class VocabTest : public testing::TestWithParam<const char*> {};

TEST_P(VocabTest, All46) {
  const auto path =
      data_dir() / "vocab-tests" / (std::string("ggml-vocab-") + GetParam() + ".gguf");
  MINFER_NEEDS(path);
  const auto tokenizer = load_tokenizer(path);
  auto texts = split(read_file(path.string() + ".inp"), "\n__ggml_vocab_test__\n");
  texts.pop_back();  // the separator ends each text
  const auto lines = split(read_file(path.string() + ".out"), "\n");
  size_t n_right = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto ids = tokenizer->encode(texts[i], {.add_bos = false});
    EXPECT_EQ(ids, ids_of(lines[i])) << texts[i];
    n_right += ids == ids_of(lines[i]);
    EXPECT_EQ(tokenizer->decode(ids), texts[i]);
  }
  EXPECT_EQ(n_right, 46u);
  EXPECT_EQ(texts.size(), 46u);
}

INSTANTIATE_TEST_SUITE_P(Gguf, VocabTest,
                         testing::Values("llama-spm", "phi-3", "gpt-2", "llama-bpe", "qwen2",
                                         "starcoder"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

struct Llama2File : testing::TestWithParam<const char*> {};

TEST_P(Llama2File, PublishedVectors) {
  const auto path = data_dir() / GetParam();
  MINFER_NEEDS(path);
  const auto tokenizer = load_tokenizer(path);
  const json vectors =
      json::parse(read_file(data_dir() / "expected/llama2-tokenizer-vectors.json"));
  for (const json& c : vectors.at("cases")) {
    const auto text = c.at("text").get<std::string>();
    const auto ids = tokenizer->encode(text, {.add_bos = c.at("add_bos").get<bool>()});
    EXPECT_EQ(ids, ids_of(c.at("ids"))) << text;
    EXPECT_EQ(tokenizer->decode(ids), text);
  }
}

TEST_P(Llama2File, WikiText) {
  const auto path = data_dir() / GetParam();
  MINFER_NEEDS(path);
  const auto tokenizer = load_tokenizer(path);
  const std::string text = read_file(data_dir() / "wikitext-2-raw/wiki.test.raw");
  const std::clock_t begin = std::clock();
  const auto ids = tokenizer->encode(text, {});
  const auto ticks = std::clock() - begin;  // of this process: the machine may be busy
  EXPECT_LT(static_cast<double>(ticks) / CLOCKS_PER_SEC, kSanitizedSlowdown * 2.0);
  EXPECT_EQ(ids.size(), 335688u);
  EXPECT_EQ(tokenizer->decode(ids), text);
}

INSTANTIATE_TEST_SUITE_P(Files, Llama2File,
                         testing::Values("llama2-tokenizer/tokenizer.model",
                                         "llama2-tokenizer/tokenizer.bin",
                                         "vocab-tests/ggml-vocab-llama-spm.gguf"));

TEST(Llama2Files, AgreeOnABook) {
  const auto path = data_dir() / "llama2-tokenizer/tokenizer.model";
  MINFER_NEEDS(path);
  const std::string text = read_file(data_dir() / "wikitext-2-raw/wiki.test.raw");
  const auto ids = load_tokenizer(path)->encode(text, {});
  for (const char* other :
       {"llama2-tokenizer/tokenizer.bin", "vocab-tests/ggml-vocab-llama-spm.gguf"})
    EXPECT_EQ(load_tokenizer(data_dir() / other)->encode(text, {}), ids) << other;
}

TEST(Stories260K, PublishedCounts) {
  const auto dir = data_dir() / "tinyllamas/stories260K";
  MINFER_NEEDS(dir);
  const json counts = json::parse(read_file(data_dir() / "expected/stories260K-token-counts.json"));
  for (const char* name : {"tok512.model", "tok512.bin", "stories260K.gguf"}) {
    const auto tokenizer = load_tokenizer(dir / name);
    EXPECT_EQ(tokenizer->n_tokens(), 512);
    for (const json& c : counts.at("cases")) {
      const auto text = c.at("text").get<std::string>();
      const auto ids = tokenizer->encode(text, {});
      EXPECT_EQ(ids.size(), c.at("count_with_bos")) << name;
      EXPECT_EQ(ids, ids_of(c.at("ids_with_bos_sentencepiece"))) << name << ": " << text;
      EXPECT_EQ(tokenizer->decode(ids), text) << name;
    }
  }
}

TEST(SmolLm2, PublishedIds) {
  MINFER_NEEDS(test::smollm2_path());
  MINFER_NEEDS(data_dir() / "expected/smollm2.json");
  MINFER_NEEDS(data_dir() / "wikitext-2-raw/wiki.test.raw");
  const auto tokenizer = load_tokenizer(test::smollm2_path());
  const json expected = json::parse(read_file(data_dir() / "expected/smollm2.json"));
  const auto ids = tokenizer->encode(read_file(data_dir() / "wikitext-2-raw/wiki.test.raw"), {});
  EXPECT_EQ(ids.size(), expected.at("tokenizer").at("wiki_test_raw_tokens"));
  std::string joined;
  for (const TokenId id : ids) joined += (joined.empty() ? "" : " ") + std::to_string(id);
  EXPECT_EQ(sha256_hex(joined),
            expected.at("tokenizer").at("sha256_of_ids_joined_by_blanks").get<std::string>());

  for (const json& c : expected.at("greedy")) {
    const auto prompt = c.at("prompt").get<std::string>();
    std::vector<TokenId> prompt_ids = tokenizer->encode(prompt, {});
    if (c.at("kind") == "chat") {
      const std::string messages = json::array({{{"role", "user"}, {"content", prompt}}}).dump();
      const ChatPrompt chat =
          make_chat_prompt(*tokenizer, ChatTemplate(tokenizer->chat_template()), messages, {});
      prompt_ids = chat.tokens;
      EXPECT_NE(std::ranges::find(chat.end_ids, 2), chat.end_ids.end());  // <|im_end|>
    }
    EXPECT_EQ(prompt_ids, ids_of(c.at("prompt_ids"))) << prompt;
    auto generated = ids_of(c.at("ids"));
    if (c.at("ended").get<bool>()) {
      EXPECT_TRUE(tokenizer->is_end(generated.back()));
      generated.pop_back();
    }
    EXPECT_EQ(tokenizer->decode(generated), c.at("text").get<std::string>());
  }
}

// The GGUF files have flat scores where tokenizer.json has merges: on ordinary prompts both give
// the same ids.
TEST(TinyStories656K, JsonAndGgufAgree) {
  const auto dir = data_dir() / "tinyllamas/TinyStories-656K";
  MINFER_NEEDS(dir);
  const auto from_json = load_tokenizer(dir / "hf-bf16");
  for (const char* name : {"gguf/TinyStories-656K.f16.gguf", "gguf/tinystories-656k-q8_0.gguf",
                           "gguf/TinyStories-656K-Q8_0.other-converter.gguf", "hf-fp32"}) {
    const auto other = load_tokenizer(dir / name);
    for (const char* prompt : {"", "Once upon a time", "Once upon a time, there was a girl."}) {
      const auto ids = from_json->encode(prompt, {});
      EXPECT_EQ(other->encode(prompt, {}), ids) << name << ": " << prompt;
      EXPECT_EQ(ids.at(0), 1);
      EXPECT_EQ(from_json->decode(ids), prompt);
    }
    EXPECT_EQ(other->eos(), 2);
  }
  EXPECT_EQ(from_json->decode(from_json->encode("a == b", {})), "a \ufffd b");
}

}  // namespace
}  // namespace minfer
