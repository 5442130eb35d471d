// Broken and hostile tokenizer files: an Input error of one line or a valid load, never a crash.
#include <cstring>
#include <functional>

#include "kernels/base/error.h"
#include "loaders/charsmap.h"
#include "loaders/tokenizer_model.h"
#include "models/tokenizer/tokenizer.h"
#include "tests/support/charsmap_builder.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_data.h"

namespace minfer {
namespace {

using test::expect_error;

void load_or_refuse(const std::string& path, const std::string& what) {
  try {
    const auto tokenizer = load_tokenizer(path);
    const auto ids = tokenizer->encode("ab <s> \xff\xe2\x96 caf\xc3\xa9\n", {});
    for (const TokenId id : ids) tokenizer->token_bytes(id);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::Input) << what << ": " << e.what();
    EXPECT_EQ(std::strchr(e.what(), '\n'), nullptr) << e.what();
  }
}

// A small SentencePiece model: specials, bytes if wanted, letters and a few merges.
SentencePieceModel small_model(bool byte_fallback, int64_t type = SentencePieceModel::Bpe) {
  SentencePieceModel model;
  model.type = type;
  model.byte_fallback = byte_fallback;
  model.remove_extra_whitespaces = false;
  model.pieces = {{"<unk>", 0, 2}, {"<s>", 0, 3}, {"</s>", 0, 3}};
  for (int i = 0; byte_fallback && i < 256; ++i) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", i);
    model.pieces.push_back({text, 0, 6});
  }
  float score = 0;
  for (const char* text : {"▁a", "ab", "▁ab", "▁", "a", "b", "c", "é"})
    model.pieces.push_back({text, --score, 1});
  return model;
}

class HostileFile : public testing::Test {
 protected:
  // Prefixes, and bytes set to 0x00 and 0xff and with each of their bits flipped: all of them at
  // both ends of the file, one in `step` between, where one piece looks like the other.
  void mutate(const std::string& name, const std::string& bytes, size_t step = 1) {
    constexpr size_t kEnds = 120;
    for (size_t at = 0; at < bytes.size();
         at += at < kEnds || at + kEnds >= bytes.size() ? 1 : step) {
      load_or_refuse(dir_.write(name, bytes.substr(0, at)), cat(at, " bytes"));
      std::vector<int> values = {0x00, 0xff};
      for (int bit = 0; bit < 8; ++bit) values.push_back(bytes[at] ^ 1 << bit);
      for (const int value : values) {
        std::string changed = bytes;
        changed[at] = static_cast<char>(value);
        load_or_refuse(dir_.write(name, changed), cat("byte ", at, " is ", value));
      }
    }
  }
  test::TempDir dir_;
};

TEST_F(HostileFile, SentencePieceModel) {
  mutate("tokenizer.model", serialize_tokenizer_model(small_model(false)));
}

TEST_F(HostileFile, SentencePieceUnigram) {
  mutate("tokenizer.model",
         serialize_tokenizer_model(small_model(false, SentencePieceModel::Unigram)));
}

TEST_F(HostileFile, SentencePieceWithBytes) {
  mutate("tokenizer.model", serialize_tokenizer_model(small_model(true)), 37);
}

std::string llama2c_file() {
  std::string bytes;
  const auto put = [&](const auto& value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  put(int32_t{6});
  for (const auto& piece : small_model(true).pieces) {
    put(piece.score);
    std::string text = piece.text.starts_with("▁") ? " " + piece.text.substr(3) : piece.text;
    if (piece.kind == 3) text = "\n" + text.substr(0, 4);
    put(static_cast<int32_t>(text.size()));
    bytes += text;
  }
  return bytes;
}

TEST_F(HostileFile, Llama2c) {
  const std::string bytes = llama2c_file();
  const auto tokenizer = load_tokenizer(dir_.write("good.bin", bytes));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("ab é\x01", {})), "ab é\x01");
  mutate("tokenizer.bin", bytes, 37);
}

TEST_F(HostileFile, TokenizerJson) {
  const std::string json = R"json({"added_tokens":[{"id":3,"content":"<s>","special":true}],
"normalizer":{"type":"Prepend","prepend":"x"},
"pre_tokenizer":{"type":"Split","pattern":{"Regex":"a+(b|c)"},"behavior":"Isolated"},
"decoder":{"type":"Fuse"},"post_processor":{"type":"TemplateProcessing","single":[
{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A"}}],
"special_tokens":{"<s>":{"id":"<s>","ids":[3]}}},
"model":{"type":"BPE","unk_token":"b","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}})json";
  const auto tokenizer = load_tokenizer(dir_.write("good.json", json));
  EXPECT_EQ(tokenizer->encode("ab", {}), (std::vector<TokenId>{3, 1, 2}));
  mutate("tokenizer.json", json);
}

// Field by field, each with the words of its refusal.
TEST(TokenizerModel, EachRule) {
  struct Case {
    const char* message;
    std::function<void(SentencePieceModel&)> break_it;
  };
  const std::vector<Case> cases = {
      {"no text", [](auto& m) { m.pieces.back().text.clear(); }},
      {"not UTF-8", [](auto& m) { m.pieces.back().text = "\xc3"; }},
      {"longer than", [](auto& m) { m.pieces.back().text.assign(8000, 'x'); }},
      {"there twice", [](auto& m) { m.pieces.back().text = "a"; }},
      {"there twice", [](auto& m) { m.pieces[2].text = "<s>"; }},
      {"score inf",
       [](auto& m) { m.pieces.back().score = std::numeric_limits<float>::infinity(); }},
      {"score nan",
       [](auto& m) { m.pieces.back().score = std::numeric_limits<float>::quiet_NaN(); }},
      {"type 7", [](auto& m) { m.pieces.back().kind = 7; }},
      {"type 0", [](auto& m) { m.pieces.back().kind = 0; }},
      {"second unknown", [](auto& m) { m.pieces.back().kind = 2; }},
      {"no unknown", [](auto& m) { m.pieces.erase(m.pieces.begin()); }},
      {"looks like <0x0A>", [](auto& m) { m.pieces[3].text = "<0x-1>"; }},
      {"looks like <0x0A>", [](auto& m) { m.pieces[3].text = "<0x0G>"; }},
      {"looks like <0x0A>", [](auto& m) { m.pieces[3].text = "<0x 1>"; }},
      {"looks like <0x0A>", [](auto& m) { m.pieces[3].text = "<0x100>"; }},
      {"255 byte pieces", [](auto& m) { m.pieces.erase(m.pieces.begin() + 3); }},
      {"without byte_fallback", [](auto& m) { m.byte_fallback = false; }},
      {"model_type 3", [](auto& m) { m.type = 3; }},
      {"charsmap", [](auto& m) { m.charsmap = std::string(64, '\0'); }},
  };
  for (const Case& c : cases) {
    SentencePieceModel model = small_model(true);
    c.break_it(model);
    expect_error(ErrorKind::Input, c.message,
                 [&] { parse_tokenizer_model(serialize_tokenizer_model(model)); });
  }
}

TEST(TokenizerModel, WireFormat) {
  const std::string good = serialize_tokenizer_model(small_model(false));
  const auto refuse = [&](const std::string& tail, const char* message) {
    expect_error(ErrorKind::Input, message, [&] { parse_tokenizer_model(good + tail); });
  };
  EXPECT_NO_THROW(parse_tokenizer_model(good + std::string("\x98\x3f\x05", 3)));  // unknown field
  refuse(std::string("\x03", 1), "field number 0");
  refuse("\x0b", "wire type 3");
  refuse("\x0c", "wire type 4");
  refuse("\x0f", "wire type 7");
  refuse(
      "\x0a\x05"
      "ab",
      "bytes wanted");
  refuse("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "bytes wanted");
  refuse("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "longer than 10 bytes");
  refuse("\x08\x01", "wire type 0, expected 2");
  expect_error(ErrorKind::Input, "no trainer_spec", [] { parse_tokenizer_model(""); });
}

// A piece with a NUL is in published models. The library's tries take it for the end of the text.
TEST(TokenizerModel, NulInsideAPiece) {
  const test::TempDir dir;
  const auto load = [&](int64_t type, int kind) {
    SentencePieceModel model = small_model(true, type);
    model.pieces.push_back({std::string("a\0b", 3), -9, kind});
    model.pieces.push_back({std::string("\0\0", 2), -9, kind});
    return load_tokenizer(dir.write("tokenizer.model", serialize_tokenizer_model(model)));
  };
  const auto tokenizer = load(SentencePieceModel::Bpe, 1);
  const std::string text("ab a\0b \0\0 x", 11);
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text, {})), text);
  expect_error(ErrorKind::Input, "a NUL", [&] { load(SentencePieceModel::Bpe, 4); });
  expect_error(ErrorKind::Input, "a NUL", [&] { load(SentencePieceModel::Unigram, 1); });
}

using test::charsmap_of;

// One unit and its children at 256; only "b" leads on, to a value at 512 and no child.
std::vector<uint32_t> small_trie() {
  constexpr uint32_t kUnused = 1u << 31;
  std::vector<uint32_t> units(768, kUnused);
  units[0] = 256u << 10;
  units[256 ^ 'b'] = 'b' | 1u << 8 | ((256u ^ 'b') ^ 512u) << 10;
  units[512] = 1u << 31 | 0;
  return units;
}

void refuse_charsmap(const std::string& charsmap, const char* message) {
  expect_error(ErrorKind::Input, message, [&] { check_charsmap(charsmap); });
}

TEST(Charsmap, EachRule) {
  const std::string nul(1, '\0');
  const std::vector<uint32_t> units = small_trie();
  EXPECT_NO_THROW(check_charsmap(charsmap_of(units, "x" + nul)));
  refuse_charsmap("abc", "bytes wanted");
  refuse_charsmap(charsmap_of({}, "x" + nul), "a trie of 0 bytes");
  refuse_charsmap(charsmap_of(units, ""), "a trie of");
  refuse_charsmap(charsmap_of(units, "x"), "ended by NUL");
  refuse_charsmap(charsmap_of(units, "\xff" + nul), "not UTF-8");
  refuse_charsmap(charsmap_of(units, std::string(300, 'x') + nul), "a replacement of");
  refuse_charsmap(std::string(5 << 20, '\0'), "expected at most 4194304");
  auto bad = units;
  bad[0] = 1024u << 10;
  refuse_charsmap(charsmap_of(bad, "x" + nul), "unit 0 leads to unit");
  bad = units;
  bad[0] = 4u << 10 | 1u << 9;  // the long form of an offset: times 256
  refuse_charsmap(charsmap_of(bad, "x" + nul), "unit 0 leads to unit");
  bad = units;
  bad[512] = 1u << 31 | 9;
  refuse_charsmap(charsmap_of(bad, "x" + nul), "replacement byte 9");
  refuse_charsmap(charsmap_of(std::vector<uint32_t>(3), "x" + nul),
                  "unit 0 leads to unit 255 of 3");
}

// The first unit is followed whatever its label and value bit say.
TEST(Charsmap, RootIsFollowedAlways) {
  const std::string nul(1, '\0');
  for (const uint32_t root : {UINT32_MAX, 1u << 31 | 1u << 20, 1u << 31 | 1u << 9 | 12u << 10}) {
    auto units = small_trie();
    units[0] = root;
    refuse_charsmap(charsmap_of(units, "x" + nul), "unit 0 leads to unit");
  }
  auto units = small_trie();
  units[0] |= 'q';  // a label of its own
  EXPECT_NO_THROW(check_charsmap(charsmap_of(units, "x" + nul)));
}

// Whatever lies where no text leads is no fault.
TEST(Charsmap, UnreachedUnitsAreFree) {
  auto units = small_trie();
  units[700] = UINT32_MAX >> 1;
  EXPECT_NO_THROW(check_charsmap(charsmap_of(units, std::string("x\0", 2))));
  units[256 ^ 188] = UINT32_MAX >> 1;  // the same with a label that fits the root's children
  units[256 ^ 255] = 0xff | 1u << 30;
  refuse_charsmap(charsmap_of(units, std::string("x\0", 2)), "leads to unit");
}

TEST(Charsmap, NoWalkComesBack) {
  const std::string replacements("x\0", 2);
  auto units = small_trie();
  units[256 ^ 'b'] = 'b' | static_cast<uint32_t>('b') << 10;  // to the root's base
  refuse_charsmap(charsmap_of(units, replacements), "leads back");
  units = small_trie();
  units[256] = 0;  // by a NUL
  refuse_charsmap(charsmap_of(units, replacements), "leads back");
  units = small_trie();
  units[512 ^ 'c'] = 'c' | (512u ^ 'c' ^ 256u) << 10;  // from the second level to the first
  refuse_charsmap(charsmap_of(units, replacements), "leads back");
}

// The library has room for 32 rules that begin at one place, and longer walks take quadratic time.
TEST(Charsmap, RulesInsideOneAnother) {
  std::map<std::string, std::string> rules;
  for (size_t n = 1; n <= 32; ++n) rules[std::string(n, 'a')] = "x";
  EXPECT_NO_THROW(check_charsmap(test::CharsmapBuilder(rules).bytes()));
  rules[std::string(33, 'a')] = "y";
  refuse_charsmap(test::CharsmapBuilder(rules).bytes(), "more than 32 rules");
  EXPECT_NO_THROW(check_charsmap(test::CharsmapBuilder({{std::string(256, 'a'), "x"}}).bytes()));
  refuse_charsmap(test::CharsmapBuilder({{std::string(257, 'a'), "x"}}).bytes(),
                  "a rule for 257 bytes");
}

// The normalization it describes is what the library does: b becomes x.
TEST(Charsmap, IsUsed) {
  SentencePieceModel model = small_model(true);
  model.charsmap = test::CharsmapBuilder({{"b", "x"}, {"bb", "y"}, {"cab", ""}}).bytes();
  const test::TempDir dir;
  const auto tokenizer =
      load_tokenizer(dir.write("tokenizer.model", serialize_tokenizer_model(model)));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("abcbbcabca", {})), "axcyca");
}

// Each piece and merge takes many times its bytes in the file.
TEST(TokenizerFile, TooManyPieces) {
  const test::TempDir dir;
  const auto refuse = [&](const char* name, const char* message, const std::string& bytes) {
    expect_error(ErrorKind::Input, message, [&] { load_tokenizer(dir.write(name, bytes)); });
  };
  SentencePieceModel model = small_model(false);
  for (int i = 0; i < 300'000; ++i) model.pieces.push_back({std::to_string(i), 0, 1});
  refuse("t.model", "more than 300000 pieces", serialize_tokenizer_model(model));
  refuse("t.bin", "more than 500000 pieces", llama2c_file() + std::string(8 * 500'000, '\0'));
  std::string vocab, merges;
  for (int i = 0; i < 400'001; ++i) vocab += cat(i > 0 ? ",\"" : "\"", i, "\":", i);
  for (int i = 0; i < 750'001; ++i) merges += i > 0 ? ",\"a a\"" : "\"a a\"";
  refuse("v.json", "more than 400000 pieces",
         "{\"model\":{\"merges\":[],\"vocab\":{" + vocab + "}}}");
  refuse("m.json", "more than 750000 merges",
         R"({"model":{"vocab":{"a":0,"aa":1},"merges":[)" + merges + "]}}");
}

TEST(TokenizerFile, NotATokenizer) {
  const test::TempDir dir;
  expect_error(ErrorKind::Input, "not a tokenizer",
               [&] { load_tokenizer(dir.write("a.txt", "hello")); });
  expect_error(ErrorKind::Input, "no tokenizer.json, tokenizer.model or tokenizer.gguf",
               [&] { load_tokenizer(dir.path()); });
  expect_error(ErrorKind::Input, "not there", [&] { load_tokenizer(dir.path() / "not there"); });
  expect_error(ErrorKind::Input, "malformed JSON",
               [&] { load_tokenizer(dir.write("t.json", "{" + std::string(100000, '['))); });
}

}  // namespace
}  // namespace minfer
