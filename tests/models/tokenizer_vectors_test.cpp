// Token ids that others published, and counts over a book.
#include <chrono>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/base/error.h"
#include "models/tokenizer.h"
#include "tests/support/test_data.h"

namespace minfer {
namespace {

using nlohmann::json;
using test::data_dir;
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
  const auto begin = std::chrono::steady_clock::now();
  const auto ids = tokenizer->encode(text, {});
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  RecordProperty("seconds", std::to_string(seconds.count()));
  std::cout << GetParam() << " " << seconds.count() << " s\n";
  EXPECT_EQ(ids.size(), 335688u);
  EXPECT_EQ(tokenizer->decode(ids), text);
}

INSTANTIATE_TEST_SUITE_P(Files, Llama2File,
                         testing::Values("llama2-tokenizer/tokenizer.model",
                                         "llama2-tokenizer/tokenizer.bin",
                                         "vocab-tests/ggml-vocab-llama-spm.gguf"));

}  // namespace
}  // namespace minfer
