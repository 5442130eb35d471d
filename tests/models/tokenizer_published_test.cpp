// Tokenizers and the files beside them as they are published: docs/tokenizers.md by example.
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "loaders/tokenizer_model.h"
#include "models/tokenizer/tokenizer.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_data.h"

namespace minfer {
namespace {

using nlohmann::json;
using test::expect_error;
using Ids = std::vector<TokenId>;

// Ids that the reference libraries give.
TEST(PublishedTokenizers, SameIdsAsTheReference) {
  const auto dir = test::data_dir() / "found-in-use";
  MINFER_NEEDS(dir / "tokenize.json");
  for (const json& entry : json::parse(test::read_file(dir / "tokenize.json"))) {
    const auto model = entry.at("model").get<std::string>();
    const auto tokenizer = load_tokenizer(dir / model);
    for (const auto& [text, ids] : entry.at("ids").items())
      EXPECT_EQ(tokenizer->encode(text, {.parse_special = true}), ids.get<Ids>())
          << model << ": " << text;
  }
}

// Pieces a to e (0 to 4), ▁ (5), ab (6), é (7), Y (8), and parts of a tokenizer.json.
json small_json(const char* parts) {
  json root = json::parse(R"({"added_tokens": [], "decoder": {"type": "Fuse"}, "model": {
    "type": "BPE", "merges": [["a", "b"]],
    "vocab": {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4, "▁": 5, "ab": 6, "é": 7, "Y": 8}}})");
  root.merge_patch(json::parse(parts));
  return root;
}

std::unique_ptr<Tokenizer> load(const json& root) {
  const test::TempDir dir;
  return load_tokenizer(dir.write("tokenizer.json", root.dump()));
}

json added(int id, const char* content, const char* flags) {
  json token = {{"id", id}, {"content", content}, {"special", false}};
  token.merge_patch(json::parse(flags));
  return token;
}

Ids encode(const Tokenizer& tokenizer, const char* text) {
  return tokenizer.encode(text, {.parse_special = true});
}

TEST(AddedToken, StripsUnicodeWhiteSpace) {
  json root = small_json("{}");
  root["added_tokens"] = {added(9, "<l>", R"({"lstrip": true})"),
                          added(10, "<r>", R"({"rstrip": true})")};
  const auto tokenizer = load(root);
  for (const char* space : {" ", "\t\n", "\u00a0", "\u0085", "\u1680", "\u2028", "\u3000 \u205f"}) {
    const std::string text = cat("a", space, "<l>b<r>", space, "c");
    EXPECT_EQ(encode(*tokenizer, text.c_str()), (Ids{0, 9, 1, 10, 2})) << text;
  }
  // No white space: a zero width space, a Mongolian vowel separator.
  for (const char* other : {"\u200b", "\u180e", "é"}) {
    const std::string text = cat("a", other, "<l>");
    EXPECT_EQ(encode(*tokenizer, text.c_str()).size(), std::string_view(other) == "é" ? 3u : 2u);
  }
  // The white space between two is one's; a token inside it is still a token.
  EXPECT_EQ(encode(*tokenizer, "<r>  <l>"), (Ids{10, 9}));
}

TEST(AddedToken, SingleWord) {
  json root = small_json("{}");
  root["added_tokens"] = {added(9, "ab", R"({"single_word": true})"),
                          added(10, "Y", R"({"single_word": true})")};
  const auto tokenizer = load(root);  // both are pieces, and keep their ids
  EXPECT_EQ(encode(*tokenizer, "Y.Y"), (Ids{8, 8}));
  EXPECT_EQ(encode(*tokenizer, "cY"), (Ids{2, 8}));
  EXPECT_EQ(tokenizer->warnings().size(), 2u);  // of the ids in the list
  root["added_tokens"] = {added(9, "<t>", R"({"single_word": true})")};
  const auto other = load(root);
  EXPECT_EQ(encode(*other, "a <t>.c<t>"), (Ids{0, 9, 2}));
  EXPECT_EQ(encode(*other, "é<t>"), (Ids{7}));
  EXPECT_EQ(encode(*other, "<t>\u0301 <t>٣ <t>_ <t>\u200d"), Ids{});  // a mark, a digit, a joiner
}

TEST(AddedToken, NormalizedIsFoundInNormalizedText) {
  json root = small_json(R"({"normalizer": {"type": "Sequence", "normalizers": [
    {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "},
     "content": "▁"}]}})");
  root["added_tokens"] = {added(9, "<n>", R"({"normalized": true})"),
                          added(10, "<x>", R"({"normalized": false})")};
  const auto tokenizer = load(root);
  EXPECT_EQ(encode(*tokenizer, "<n>"), (Ids{9}));  // "▁<n>" is its normalized spelling
  EXPECT_EQ(encode(*tokenizer, "a <n>"), (Ids{5, 0, 9}));
  EXPECT_EQ(encode(*tokenizer, "a<n>"), (Ids{5, 0}));
  EXPECT_EQ(encode(*tokenizer, "a<x>b"), (Ids{5, 0, 10, 5, 1}));
  // A control token stays text where control tokens are not asked for, normalized or not.
  root["added_tokens"] = {added(9, "<n>", R"({"normalized": true, "special": true})")};
  EXPECT_EQ(load(root)->encode("a <n>", {}), (Ids{5, 0, 5}));
  const std::vector<TextPart> parts = {{"a <n>", false}, {"<n>", true}};
  EXPECT_EQ(load(root)->encode(parts, true), (Ids{5, 0, 5, 9}));
}

TEST(AddedToken, NumberedAsTokenizersDoes) {
  json root = small_json("{}");
  root["added_tokens"] = {added(9, "<x>", "{}"), added(700, "<y>", "{}")};
  const auto tokenizer = load(root);
  EXPECT_EQ(encode(*tokenizer, "<x><y>"), (Ids{9, 10}));
  ASSERT_EQ(tokenizer->warnings().size(), 1u);
  EXPECT_NE(tokenizer->warnings()[0].find("\"<y>\" has id 700"), std::string::npos);
  // Outside the model: found whole, never merged into.
  root["added_tokens"] = {added(9, "f", R"({"single_word": true})")};
  EXPECT_EQ(encode(*load(root), "af f"), (Ids{0, 9}));
}

TEST(HfModel, TypeIsFoundByItsFields) {
  json root = small_json("{}");
  root["model"].erase("type");
  EXPECT_EQ(encode(*load(root), "abc"), (Ids{6, 2}));
  root["model"].erase("merges");
  expect_error(ErrorKind::Input, "it has no type", [&] { load(root); });
}

TEST(HfModel, CharactersWithoutAPiece) {
  EXPECT_EQ(encode(*load(small_json("{}")), "axb"), (Ids{6}));  // left out before merging
  json root = small_json(R"({"model": {"unk_token": "Y"}})");
  EXPECT_EQ(encode(*load(root), "axxb"), (Ids{0, 8, 8, 1}));
  root["model"]["fuse_unk"] = true;
  EXPECT_EQ(encode(*load(root), "axxb"), (Ids{0, 8, 1}));
  root["model"]["merges"] = {"#version: 0.2", "a b", "a b"};
  EXPECT_EQ(encode(*load(root), "ab"), (Ids{6}));
}

TEST(HfModel, StepsOfThePreTokenizer) {
  const auto ids = [](const char* pre_tokenizer, const char* text) {
    json root = small_json("{}");
    root["pre_tokenizer"] = json::parse(pre_tokenizer);
    return encode(*load(root), text);
  };
  EXPECT_EQ(ids(R"({"type": "CharDelimiterSplit", "delimiter": "c"})", "acb"), (Ids{0, 1}));
  EXPECT_EQ(ids(R"({"type": "WhitespaceSplit"})", "a\u3000b"), (Ids{0, 1}));
  EXPECT_EQ(ids(R"({"type": "Whitespace"})", "ab a.b"), (Ids{6, 0, 1}));
  EXPECT_EQ(ids(R"({"type": "Punctuation", "behavior": "Removed"})", "a$b"), (Ids{0, 1}));
  constexpr const char* kFirst =
      R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false})";
  EXPECT_EQ(ids(kFirst, "a b"), (Ids{5, 0, 5, 1}));
  const std::string behind = cat(R"({"type": "Sequence", "pretokenizers": [)",
                                 R"({"type": "WhitespaceSplit"}, )", kFirst, "]}");
  EXPECT_EQ(ids(behind.c_str(), "a b"), (Ids{5, 0, 1}));
  EXPECT_EQ(ids(behind.c_str(), " a b"), (Ids{0, 1}));  // "a" is not at the start of the text
}

// Falcon's: digits are looked for among the characters that spell bytes.
TEST(HfModel, StepsBehindByteLevel) {
  json root = small_json(R"({"decoder": {"type": "ByteLevel", "add_prefix_space": true,
    "trim_offsets": true, "use_regex": true}, "pre_tokenizer": {"type": "Sequence",
    "pretokenizers": [{"type": "Punctuation", "behavior": "Contiguous"},
      {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
      {"type": "Digits", "individual_digits": false}]},
    "model": {"vocab": {"Ã": 9, "²": 10, "Ã²": 11, "1": 12, "a1": 13}, "merges": [["Ã", "²"],
      ["a", "1"]]}})");
  EXPECT_EQ(encode(*load(root), "ò"), (Ids{9, 10}));  // C3 B2: "²" is a digit of its own
  EXPECT_EQ(encode(*load(root), "a1"), (Ids{0, 12}));
  EXPECT_EQ(load(root)->decode(Ids{9, 10, 0}), "òa");
}

TEST(HfModel, PostProcessors) {
  json root = small_json(R"({"post_processor": {"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
               {"SpecialToken": {"id": "</s>", "type_id": 0}}],
    "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [3], "tokens": ["d"]},
                                   "</s>": {"id": "</s>", "ids": [4], "tokens": ["e"]}}}})");
  const auto tokenizer = load(root);
  EXPECT_EQ(encode(*tokenizer, "ab"), (Ids{3, 6}));  // a prompt goes on
  EXPECT_EQ(tokenizer->notes().size(), 1u);
  root["post_processor"] = json::parse(R"({"type": "RobertaProcessing", "sep": ["e", 4],
    "cls": ["d", 3], "trim_offsets": true, "add_prefix_space": false})");
  EXPECT_EQ(encode(*load(root), "ab"), (Ids{3, 6}));
  root["post_processor"]["type"] = "BertProcessing";
  EXPECT_EQ(load(root)->notes().size(), 1u);
}

// Every component with a field that it does not have, and every one that is not there.
TEST(HfModel, NothingIsReadPast) {
  const char* const kComponents[] = {
      R"({"normalizer": {"type": "NFC"}})",
      R"({"normalizer": {"type": "Prepend", "prepend": "x"}})",
      R"({"normalizer": {"type": "Strip", "strip_left": true, "strip_right": true}})",
      R"({"normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}})",
      R"({"pre_tokenizer": {"type": "Digits", "individual_digits": true}})",
      R"({"pre_tokenizer": {"type": "Punctuation", "behavior": "Isolated"}})",
      R"({"pre_tokenizer": {"type": "Whitespace"}})",
      R"({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}})",
      R"({"pre_tokenizer": {"type": "Metaspace", "replacement": "▁"}})",
      R"({"decoder": {"type": "Fuse"}})",
      R"({"decoder": {"type": "ByteFallback"}})",
      R"({"decoder": {"type": "Metaspace", "replacement": "▁"}})",
      R"({"decoder": {"type": "Strip", "content": " ", "start": 1, "stop": 0}})",
      R"({"post_processor": {"type": "ByteLevel"}})",
      R"({"model": {}})"};
  for (const char* text : kComponents) {
    json part = json::parse(text);
    EXPECT_NO_THROW(load(small_json(text))) << text;
    part.begin().value()["zzz"] = 1;
    expect_error(ErrorKind::Input, "field \"zzz\" is not known",
                 [&] { load(small_json(part.dump().c_str())); });
  }
  const auto refuse = [](const char* part, const char* message) {
    expect_error(ErrorKind::Input, message, [&] { load(small_json(part)); });
  };
  refuse(R"({"zzz": 1})", "tokenizer.json: field \"zzz\"");
  refuse(R"({"added_tokens": [{"id": 9, "content": "x", "zzz": 1}]})",
         "added token: field \"zzz\"");
  for (const char* type :
       {"BertNormalizer", "Lowercase", "NFKC", "Nmt", "Precompiled", "ByteLevel"})
    refuse(cat(R"({"normalizer": {"type": ")", type, "\"}}").c_str(), type);
  for (const char* type : {"UnicodeScripts", "FixedLength", "Nope"})
    refuse(cat(R"({"pre_tokenizer": {"type": ")", type, "\"}}").c_str(), type);
  for (const char* type : {"BPEDecoder", "WordPiece", "CTC"})
    refuse(cat(R"({"decoder": {"type": ")", type, "\"}}").c_str(), type);
  for (const char* type : {"WordLevel", "WordPiece"})
    refuse(cat(R"({"model": {"type": ")", type, "\"}}").c_str(), type);
}

// The cut with the largest sum of scores; what has no piece is bytes or one unknown token.
TEST(HfModel, Unigram) {
  json root = small_json(R"({"model": null})");
  root["model"] = json::parse(R"({"unk_id": 0, "byte_fallback": false, "vocab": [["<unk>", 0],
    ["a", -1], ["b", -1.5], ["ab", -2.25], ["abc", -9], ["c", -3], ["bc", -5]]})");
  EXPECT_EQ(encode(*load(root), "abc"), (Ids{3, 5}));
  EXPECT_EQ(encode(*load(root), "axyb"), (Ids{1, 0, 2}));
  root["model"]["vocab"][3][1] = -2.75;  // now "a" and "b" are better
  EXPECT_EQ(encode(*load(root), "ab"), (Ids{1, 2}));
  root["model"]["byte_fallback"] = true;
  for (const char* byte : {"<0xC3>", "<0xA9>"}) root["model"]["vocab"].push_back({byte, 0});
  EXPECT_EQ(encode(*load(root), "aé"), (Ids{1, 7, 8}));
  EXPECT_EQ(encode(*load(root), "aéx"), (Ids{1, 0}));  // a run is bytes as a whole, or unknown
  root["model"]["unk_id"] = nullptr;
  expect_error(ErrorKind::Input, "without unk_id", [&] { load(root); });
  root["model"]["unk_id"] = 9;
  expect_error(ErrorKind::Input, "unk_id is 9", [&] { load(root); });
  root["model"]["unk_id"] = 0;
  expect_error(ErrorKind::Input, "no form in GGUF", [&] { load(root)->to_gguf(20); });
}

TEST(HfDecoder, TokenByToken) {
  const auto text_of = [](const char* decoder, const Ids& ids) {
    json root = small_json("{}");
    root["decoder"] = json::parse(decoder);
    return load(root)->decode(ids);
  };
  EXPECT_EQ(text_of("null", {0, 6, 5}), "a ab ▁");  // tokenizers puts blanks between
  EXPECT_EQ(text_of(R"({"type": "Strip", "content": "▁", "start": 1, "stop": 1})", {5, 0}), "a");
  EXPECT_EQ(text_of(R"({"type": "Replace", "pattern": {"String": "a"}, "content": "c"})", {6}),
            "cb");
}

class SideFilesOfJson : public testing::Test {
 protected:
  SideFilesOfJson() {
    SentencePieceModel model;
    model.type = SentencePieceModel::Bpe;
    model.remove_extra_whitespaces = false;
    model.pieces = {{"<unk>", 0, 2}, {"<s>", 0, 3}, {"</s>", 0, 3},
                    {"▁", -1, 1},    {"a", -2, 1},  {"[I]", 0, 3}};
    model_ = serialize_tokenizer_model(model);
  }
  test::TempDir dir_;
  std::string model_;
};

TEST_F(SideFilesOfJson, TokenizerJsonComesBeforeTokenizerModel) {
  dir_.write("tokenizer.model", model_);
  EXPECT_EQ(load_tokenizer(dir_.path())->encode("a", {}), (Ids{1, 3, 4}));
  dir_.write("tokenizer.json", small_json("{}").dump());
  EXPECT_EQ(load_tokenizer(dir_.path())->encode("a", {}), (Ids{0}));
}

TEST_F(SideFilesOfJson, FlagsOfTheJsonCountMore) {
  json root = small_json("{}");
  root["added_tokens"] = {added(9, "<t>", R"({"rstrip": true, "special": true})")};
  dir_.write("tokenizer.json", root.dump());
  dir_.write("tokenizer_config.json", R"({"bos_token": "d", "add_bos_token": true,
    "add_prefix_space": false, "added_tokens_decoder": {
      "9": {"content": "<t>", "rstrip": false, "special": false},
      "10": {"content": "<u>", "lstrip": true, "special": false}}})");
  const auto tokenizer = load_tokenizer(dir_.path());
  EXPECT_EQ(encode(*tokenizer, "a<t> <u>b"), (Ids{3, 0, 9, 10, 1}));
  EXPECT_EQ(tokenizer->encode("<t>", {}), (Ids{3}));
}

TEST_F(SideFilesOfJson, TheTokenInFront) {
  json root = small_json(R"({"post_processor": {"type": "BertProcessing", "sep": ["e", 4],
                             "cls": ["d", 3]}})");
  dir_.write("tokenizer.json", root.dump());
  const auto ids = [&](const char* config) {
    dir_.write("tokenizer_config.json", config);
    return load_tokenizer(dir_.path())->encode("a", {});
  };
  EXPECT_EQ(ids("{}"), (Ids{3, 0}));
  EXPECT_EQ(ids(R"({"bos_token": "c"})"), (Ids{3, 0}));
  EXPECT_EQ(ids(R"({"bos_token": null})"), (Ids{3, 0}));
  EXPECT_EQ(ids(R"({"bos_token": "c", "add_bos_token": true})"), (Ids{2, 0}));
  EXPECT_EQ(ids(R"({"bos_token": "c", "add_bos_token": false})"), (Ids{0}));
}

// With "legacy" every stretch gets a blank in front, else the start alone, and that one if asked.
TEST_F(SideFilesOfJson, LegacyAndAddPrefixSpace) {
  dir_.write("tokenizer.model", model_);
  const auto ids = [&](const char* config, const char* text) {
    dir_.write("tokenizer_config.json", config);
    return load_tokenizer(dir_.path())->encode(text, {.add_bos = false, .parse_special = true});
  };
  EXPECT_EQ(ids("{}", "a[I]a"), (Ids{3, 4, 5, 3, 4}));
  EXPECT_EQ(ids(R"({"legacy": null})", "a[I]a"), (Ids{3, 4, 5, 3, 4}));
  EXPECT_EQ(ids(R"({"legacy": true, "add_prefix_space": false})", "a[I]a"), (Ids{3, 4, 5, 3, 4}));
  EXPECT_EQ(ids(R"({"legacy": false})", "a[I]a"), (Ids{3, 4, 5, 4}));
  EXPECT_EQ(ids(R"({"legacy": false})", "[I]a"), (Ids{5, 4}));
  EXPECT_EQ(ids(R"({"legacy": false, "add_prefix_space": false})", "a[I] a"), (Ids{4, 5, 3, 4}));
}

TEST_F(SideFilesOfJson, EndIdsOfAllFiles) {
  dir_.write("tokenizer.json", small_json("{}").dump());
  dir_.write("config.json", R"({"eos_token_id": 2})");
  EXPECT_EQ(load_tokenizer(dir_.path())->end_ids(), (Ids{2}));
  dir_.write("generation_config.json", R"({"eos_token_id": [3, 500, -1]})");
  dir_.write("tokenizer_config.json", R"({"eos_token": "e"})");
  const auto tokenizer = load_tokenizer(dir_.path());
  EXPECT_EQ(tokenizer->end_ids(), (Ids{4, 3, 2}));
  EXPECT_EQ(tokenizer->warnings().size(), 2u);
  EXPECT_NE(tokenizer->warnings()[0].find("eos_token_id 500"), std::string::npos);
  dir_.write("config.json", R"({"eos_token_id": )");  // for the model's loader to say
  EXPECT_NO_THROW(load_tokenizer(dir_.path()));
}

// An embedding may have fewer rows than there are tokens.
TEST(ToGgufOfJson, LeavesOutAddedTokensWithoutARow) {
  json root = small_json(R"({"normalizer": {"type": "Replace", "pattern": {"String": " "},
                             "content": "▁"}})");
  root["added_tokens"] = {added(9, "<pad>", R"({"special": true})")};
  const auto again = make_gguf_tokenizer(load(root)->to_gguf(9));
  EXPECT_EQ(again->n_tokens(), 9);
  EXPECT_EQ(again->encode("ab c", {}), (Ids{6, 5, 2}));
  expect_error(ErrorKind::Input, "the embedding 8 rows", [&] { load(root)->to_gguf(8); });
}

TEST(ToGgufOfJson, KeepsTheMeaningOrRefuses) {
  const auto refuse = [](const char* parts, const char* message) {
    expect_error(ErrorKind::Input, message, [&] { load(small_json(parts))->to_gguf(20); });
  };
  refuse(R"({"pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first",
             "split": false}})",
         "no form in GGUF");
  refuse(R"({"pre_tokenizer": {"type": "Digits", "individual_digits": true}})", "no form in GGUF");
  refuse(R"({"normalizer": {"type": "NFC"}})", "no form in GGUF");
  refuse(R"({"decoder": null})", "decoder has no form");
  refuse(R"({"model": {"ignore_merges": true}, "pre_tokenizer": {"type": "Metaspace",
             "replacement": "▁", "prepend_scheme": "never", "split": false}})",
         "ignore_merges has no form");
  refuse(R"({"added_tokens": [{"id": 9, "content": "x", "lstrip": true}]})", "lstrip");
}

}  // namespace
}  // namespace minfer
