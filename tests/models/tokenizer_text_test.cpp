// Any text, of any length: no exception, no quadratic time, back to the same bytes.
#include <ctime>
#include <nlohmann/json.hpp>
#include <random>

#include "models/tokenizer/split.h"
#include "models/tokenizer/tokenizer.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/sanitized.h"
#include "tests/support/test_data.h"

namespace minfer {
namespace {

using test::data_dir;

// Where the sanitizers slow everything down, a tenth of the text tells the same.
constexpr size_t kLongText = test::kSanitized ? 100'000 : 1'000'000;
// Of the process. A quadratic loop over a million symbols takes hours.
constexpr double kMaxSeconds = 5;

template <typename F>
double seconds_of(const F& f) {
  const std::clock_t begin = std::clock();
  f();
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

std::string random_bytes(std::mt19937& random, size_t n) {
  std::string bytes;
  for (size_t i = 0; i < n; ++i) bytes += static_cast<char>(random() & 0xff);
  return bytes;
}

std::string with_replacement_characters(const Tokenizer& tokenizer,
                                        const std::vector<TokenId>& ids) {
  StreamDecoder stream(tokenizer, true);
  std::string text;
  for (const TokenId id : ids) text += stream.push(id);
  return text + stream.flush();
}

struct EveryTokenizer : testing::TestWithParam<const char*> {
  std::filesystem::path path() const {
    return std::string(GetParam()) == "smollm2" ? test::smollm2_path() : data_dir() / GetParam();
  }
};

// One word without a blank, as long as a book.
TEST_P(EveryTokenizer, ABookWithoutABlank) {
  MINFER_NEEDS(path());
  MINFER_NEEDS(data_dir() / "wikitext-2-raw/wiki.test.raw");
  const auto tokenizer = load_tokenizer(path());
  std::string book = test::read_file(data_dir() / "wikitext-2-raw/wiki.test.raw");
  std::erase_if(book, [](char c) { return c < 'A' && c >= 0; });
  book.resize(std::min(book.size(), kLongText));
  std::vector<TokenId> ids;
  EXPECT_LT(seconds_of([&] { ids = tokenizer->encode(book, {}); }), kMaxSeconds);
  EXPECT_GT(ids.size(), book.size() / 10);
}

TEST_P(EveryTokenizer, RunsOfOneClass) {
  MINFER_NEEDS(path());
  const auto tokenizer = load_tokenizer(path());
  for (const char* unit : {" ", "\n", "a", "7", "!", " \n", "é", "\u2003", "\xff", "<", "\r\n\r"}) {
    std::string text;
    while (text.size() < kLongText / 5) text += unit;
    text += "x";
    EXPECT_LT(seconds_of([&] { tokenizer->encode(text, {.parse_special = true}); }), kMaxSeconds)
        << unit;
  }
}

TEST_P(EveryTokenizer, RandomBytes) {
  MINFER_NEEDS(path());
  const auto tokenizer = load_tokenizer(path());
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    const std::string bytes = random_bytes(random, random() % 200);
    const auto ids = tokenizer->encode(bytes, {.parse_special = i % 2 == 0});
    for (const TokenId id : ids) EXPECT_TRUE(id >= 0 && id < tokenizer->n_tokens());
    // A stream is whole characters, whatever comes, and says the same as decode.
    const std::string text = with_replacement_characters(*tokenizer, ids);
    EXPECT_EQ(text.find('\xff'), text.npos);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Files, EveryTokenizer,
    testing::Values("llama2-tokenizer/tokenizer.model", "llama2-tokenizer/tokenizer.bin",
                    "vocab-tests/ggml-vocab-llama-spm.gguf", "vocab-tests/ggml-vocab-gpt-2.gguf",
                    "vocab-tests/ggml-vocab-llama-bpe.gguf", "vocab-tests/ggml-vocab-qwen2.gguf",
                    "tinyllamas/TinyStories-656K/hf-bf16/tokenizer.json",
                    "tinyllamas/TinyStories-656K/gguf/TinyStories-656K.f16.gguf", "smollm2"));

// Byte-complete vocabularies give every text back: SentencePiece ones valid UTF-8, byte-level ones
// any bytes.
TEST(RoundTrip, ValidUtf8) {
  const auto path = data_dir() / "llama2-tokenizer/tokenizer.model";
  MINFER_NEEDS(path);
  const auto model = load_tokenizer(path);
  const auto own = load_tokenizer(data_dir() / "vocab-tests/ggml-vocab-llama-spm.gguf");
  const std::vector<std::string> units = {" ", "  ", "a",   "the", "\n", "é",      "我",
                                          "😀", "▁",  "<s>", "\t",  "7",  "\u00a0", "\x01"};
  std::mt19937 random(2);
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    for (size_t n = random() % 20; n > 0; --n) text += units[random() % units.size()];
    const auto ids = model->encode(text, {});
    EXPECT_EQ(own->encode(text, {}), ids) << text;
    std::string expected = text;  // SentencePiece does not tell ▁ from a blank
    for (size_t at; (at = expected.find("▁")) != expected.npos;) expected.replace(at, 3, " ");
    EXPECT_EQ(model->decode(ids), expected);
    EXPECT_EQ(with_replacement_characters(*model, ids), expected);
  }
}

TEST(RoundTrip, AnyBytes) {
  const auto path = data_dir() / "vocab-tests/ggml-vocab-gpt-2.gguf";
  MINFER_NEEDS(path);
  for (const char* name : {"gpt-2", "llama-bpe", "qwen2"}) {
    const auto tokenizer =
        load_tokenizer(data_dir() / ("vocab-tests/ggml-vocab-" + std::string(name) + ".gguf"));
    std::mt19937 random(3);
    for (int i = 0; i < 500; ++i) {
      const std::string bytes = random_bytes(random, random() % 100);
      EXPECT_EQ(tokenizer->decode(tokenizer->encode(bytes, {})), bytes);
    }
  }
}

// The same malformed text through the library and through our own merging: U+FFFD for each byte.
TEST(InvalidUtf8, IsReplacedAsSentencePieceDoes) {
  const auto path = data_dir() / "llama2-tokenizer/tokenizer.model";
  MINFER_NEEDS(path);
  const auto model = load_tokenizer(path);
  const auto own = load_tokenizer(data_dir() / "vocab-tests/ggml-vocab-llama-spm.gguf");
  std::mt19937 random(4);
  for (int i = 0; i < 500; ++i) {
    const std::string bytes = random_bytes(random, random() % 40);
    EXPECT_EQ(own->encode(bytes, {}), model->encode(bytes, {}));
  }
  EXPECT_EQ(model->decode(model->encode("a\xe6\xad"
                                        "b",
                                        {})),
            "a\ufffd\ufffdb");
}

TEST(StreamDecoder, HoldsBackWhatIsNoCharacterYet) {
  const auto tokenizer = make_gguf_tokenizer(test::byte_vocabulary({"<s>", "</s>"}));
  StreamDecoder stream(*tokenizer, true);
  const auto push = [&](int byte) { return stream.push(byte); };
  EXPECT_EQ(push('a'), "a");
  EXPECT_EQ(push(0xe2), "");
  EXPECT_EQ(push(0x82), "");
  EXPECT_EQ(push(0xac), "€");
  EXPECT_EQ(push(0xf0), "");
  EXPECT_EQ(push(0x9f), "");
  EXPECT_EQ(push('b'), "\ufffdb");  // one for what could have become one character
  EXPECT_EQ(push(0xff), "\ufffd");
  EXPECT_EQ(push(0xc3), "");
  EXPECT_EQ(stream.flush(), "\ufffd");
  EXPECT_EQ(stream.flush(), "");
}

TEST(StreamDecoder, DropsTheDummyPrefixAtTheStartOnly) {
  const auto path = data_dir() / "vocab-tests/ggml-vocab-llama-spm.gguf";
  MINFER_NEEDS(path);
  const auto tokenizer = load_tokenizer(path);
  const TokenId hello = tokenizer->find("▁Hello");
  ASSERT_GE(hello, 0);
  StreamDecoder start(*tokenizer, true), middle(*tokenizer, false);
  EXPECT_EQ(start.push(tokenizer->bos()), "");
  EXPECT_EQ(start.push(hello), "Hello");
  EXPECT_EQ(start.push(hello), " Hello");
  EXPECT_EQ(middle.push(hello), " Hello");
}

TEST(TextSplitter, LongRuns) {
  for (const char* name : {"gpt-2", "smollm", "llama-bpe", "qwen2"}) {
    const TextSplitter splitter = pre_tokenizer_by_name(name).splitter;
    for (const char unit : {' ', '\n', 'a', '7', '!', '\''}) {
      const std::string text = std::string(kLongText, unit) + "x";
      size_t n_bytes = 0;
      EXPECT_LT(seconds_of([&] {
                  for (const std::string_view word : splitter.split(text)) n_bytes += word.size();
                }),
                kMaxSeconds);
      EXPECT_EQ(n_bytes, text.size()) << name << " " << unit;
    }
  }
}

TEST(TextSplitter, PatternsThatWouldNotEndAreStopped) {
  TextSplitter splitter;
  splitter.add_step("(a|aa|aaa)+(a|aa|aaa)+$");
  try {
    splitter.split(std::string(5000, 'a') + "b");
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::Input) << e.what();
  }
}

}  // namespace
}  // namespace minfer
