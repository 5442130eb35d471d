// Work and memory of a tokenizer.json are bounded by its bytes and those of the text.
#include <ctime>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "models/tokenizer/tokenizer.h"
#include "tests/support/allocation_meter.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace minfer {
namespace {

using nlohmann::json;
using test::expect_error;

constexpr double kMaxSeconds = 5;  // quadratic work on these inputs takes minutes
constexpr size_t kMaxMoreBytes = 64 << 20;

class TokenizerBounds : public testing::Test {
 protected:
  TokenizerBounds() {
    root_ = json::parse(R"({"added_tokens": [], "model": {"type": "BPE", "merges": [],
                            "vocab": {"a": 0, "b": 1, "ab": 2}}})");
  }
  std::unique_ptr<Tokenizer> load() {
    const std::string text = root_.dump();
    const std::string path = dir_.write("tokenizer.json", text);
    test::reset_peak();
    const size_t before = test::held_bytes();
    auto tokenizer = load_tokenizer(path);
    EXPECT_LE(test::peak_bytes() - before, 2 * text.size() + kMaxMoreBytes);
    return tokenizer;
  }
  void add_token(std::string content, const char* flags = "{}") {
    json token = {{"id", 3 + root_["added_tokens"].size()}, {"content", std::move(content)}};
    token.merge_patch(json::parse(flags));
    root_["added_tokens"].push_back(std::move(token));
  }
  // Of the process, for loading and encoding.
  double seconds_of(const std::string& text) {
    const std::clock_t begin = std::clock();
    load()->encode(text, {.parse_special = true});
    return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  }
  json root_;
  test::TempDir dir_;
};

TEST_F(TokenizerBounds, HolesInTheNumbering) {
  json& vocab = root_["model"]["vocab"];
  for (int i = 1; i < 20000; ++i) vocab[cat("v", i)] = i * 4000;
  expect_error(ErrorKind::Input, "the vocabulary has 20002 pieces", [&] { load(); });
  vocab = {{"a", 0}, {"b", 4096}};
  EXPECT_EQ(load()->n_tokens(), 4097);
  vocab = {{"a", 0}, {"b", -1}};
  expect_error(ErrorKind::Input, "has id -1", [&] { load(); });
}

TEST_F(TokenizerBounds, NormalizersThatGrow) {
  for (const char* pattern : {R"({"String": "a"})", R"({"Regex": "a"})"}) {
    root_["normalizer"] = {{"type", "Sequence"}, {"normalizers", json::array()}};
    for (int i = 0; i < 40; ++i) {
      root_["normalizer"]["normalizers"].push_back(
          {{"type", "Replace"}, {"pattern", json::parse(pattern)}, {"content", "aa"}});
    }
    const auto tokenizer = load();
    test::reset_peak();
    const size_t before = test::held_bytes();
    expect_error(ErrorKind::Input, "the normalizer makes a text longer than",
                 [&] { tokenizer->encode("a", {}); });
    EXPECT_LE(test::peak_bytes() - before, kMaxMoreBytes);
  }
  root_["normalizer"] = {{"type", "Prepend"}, {"prepend", std::string(2 << 20, 'a')}};
  expect_error(ErrorKind::Input, "longer than", [&] { load()->encode("a", {}); });
}

TEST_F(TokenizerBounds, TooManySteps) {
  for (const char* part : {"normalizer", "pre_tokenizer", "decoder"}) {
    const json saved = root_;
    const char* members = part[0] == 'n'   ? "normalizers"
                          : part[0] == 'p' ? "pretokenizers"
                                           : "decoders";
    const char* type = part[0] == 'n' ? "NFC" : part[0] == 'p' ? "Whitespace" : "ByteFallback";
    root_[part] = {{"type", "Sequence"}, {members, json::array()}};
    for (int i = 0; i < 129; ++i) root_[part][members].push_back({{"type", type}});
    expect_error(ErrorKind::Input, "more than 128 steps", [&] { load(); });
    root_ = saved;
  }
}

TEST_F(TokenizerBounds, ManyAddedTokens) {
  for (int i = 0; i < 60000; ++i) add_token(cat("<", i, ">"));
  EXPECT_LT(seconds_of("a <1> b <59999>"), kMaxSeconds);
  for (int i = 0; i < 200; ++i) add_token(std::string(6000, 'x') + std::to_string(i));
  expect_error(ErrorKind::Input, "the added tokens are longer than", [&] { load(); });
}

// Each byte of the text begins what is nearly a token.
TEST_F(TokenizerBounds, TokensThatNearlyMatch) {
  add_token(std::string(60000, 'a') + "b");
  add_token("b" + std::string(60000, 'a'));
  EXPECT_LT(seconds_of(std::string(500'000, 'a')), kMaxSeconds);
}

TEST_F(TokenizerBounds, WhiteSpaceThatManyTokensTake) {
  add_token(" ", R"({"rstrip": true})");
  EXPECT_LT(seconds_of(std::string(300'000, ' ')), kMaxSeconds);
  root_["added_tokens"].clear();
  add_token("\n", R"({"lstrip": true})");
  EXPECT_LT(seconds_of(std::string(300'000, ' ') + std::string(300'000, '\n')), kMaxSeconds);
}

TEST_F(TokenizerBounds, LongLists) {
  dir_.write("generation_config.json", json({{"eos_token_id", std::vector<int>(1001, 1)}}).dump());
  expect_error(ErrorKind::Input, "eos_token_id: 1001 ids", [&] { load(); });
  dir_.write("generation_config.json", "{}");
  root_["normalizer"] = {
      {"type", "Replace"}, {"pattern", {{"String", std::string(1001, 'a')}}}, {"content", ""}};
  expect_error(ErrorKind::Input, "pattern of 1001 bytes", [&] { load(); });
}

}  // namespace
}  // namespace minfer
