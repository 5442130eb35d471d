// Special tokens, BOS, ends, and what the files beside a tokenizer say.
#include <nlohmann/json.hpp>

#include "loaders/tokenizer_model.h"
#include "models/tokenizer/tokenizer.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace minfer {
namespace {

using test::expect_error;
using Ids = std::vector<TokenId>;

constexpr TokenId kBos = 258, kEos = 259;  // of byte_vocabulary

TEST(SpecialTokens, ControlTokensOnlyWhenAsked) {
  const auto tokenizer = make_gguf_tokenizer(test::byte_vocabulary({"<s>", "</s>", "<s>x"}));
  EXPECT_EQ(tokenizer->encode("a</s>", {.parse_special = true}), (Ids{'a', kEos}));
  EXPECT_EQ(tokenizer->encode("a</s>", {}), (Ids{'a', '<', '/', 's', '>'}));
  // The longest wins.
  EXPECT_EQ(tokenizer->encode("<s>x<s>y", {.parse_special = true}), (Ids{260, kBos, 'y'}));
  EXPECT_EQ(tokenizer->decode(Ids{kBos, 'a', kEos}), "a");
  EXPECT_EQ(tokenizer->decode(Ids{kBos, 'a', kEos}, true), "<s>a</s>");
}

TEST(SpecialTokens, UserDefinedTokensAlways) {
  Metadata metadata = test::byte_vocabulary({"<s>", "</s>", "<tool>"});
  auto types = metadata.integers("tokenizer.ggml.token_type");
  types[260] = 4;
  metadata.set("tokenizer.ggml.token_type", types);
  const auto tokenizer = make_gguf_tokenizer(metadata);
  EXPECT_EQ(tokenizer->encode("a<tool>b", {}), (Ids{'a', 260, 'b'}));
  EXPECT_EQ(tokenizer->decode(Ids{'a', 260, 'b'}), "a<tool>b");
}

TEST(SpecialTokens, MergesReachOverPartsOfAText) {
  const auto tokenizer = make_gguf_tokenizer(test::byte_vocabulary({"<s>", "</s>"}));
  const std::vector<TextPart> parts = {{"</s>a", true}, {"b</s>", false}, {"</s>", true}};
  EXPECT_EQ(tokenizer->encode(parts, true), (Ids{kEos, 256, '<', '/', 's', '>', kEos}));
}

TEST(Bos, OnceWhereTheFileSaysSo) {
  Metadata metadata = test::byte_vocabulary({"<s>", "</s>"});
  EXPECT_EQ(make_gguf_tokenizer(metadata)->encode("a", {}), (Ids{'a'}));  // gpt-2 adds none
  metadata.set("tokenizer.ggml.add_bos_token", true);
  const auto tokenizer = make_gguf_tokenizer(metadata);
  EXPECT_EQ(tokenizer->encode("a", {}), (Ids{kBos, 'a'}));
  EXPECT_EQ(tokenizer->encode("", {}), (Ids{kBos}));
  EXPECT_EQ(tokenizer->encode("a", {.add_bos = false}), (Ids{'a'}));
  EXPECT_EQ(tokenizer->encode("<s>a", {.parse_special = true}), (Ids{kBos, 'a'}));
  metadata.set("tokenizer.ggml.add_bos_token", false);
  metadata.set("tokenizer.ggml.pre", "llama-bpe");
  EXPECT_FALSE(make_gguf_tokenizer(metadata)->adds_bos());
}

TEST(Bos, ByDefaultOfThePreTokenizer) {
  Metadata metadata = test::byte_vocabulary({"<s>", "</s>"});
  for (const char* name : {"llama-bpe", "llama3", "llama-v3"}) {
    metadata.set("tokenizer.ggml.pre", name);
    EXPECT_TRUE(make_gguf_tokenizer(metadata)->adds_bos()) << name;
  }
  metadata.set("tokenizer.ggml.bos_token_id", uint64_t{0xffffffff});  // none
  EXPECT_FALSE(make_gguf_tokenizer(metadata)->adds_bos());
}

TEST(Ends, EosEndOfTurnAndKnownNames) {
  Metadata metadata = test::byte_vocabulary({"<s>", "</s>", "<turn>", "<|im_end|>", "<other>"});
  metadata.set("tokenizer.ggml.eot_token_id", uint64_t{260});
  const auto tokenizer = make_gguf_tokenizer(metadata);
  EXPECT_EQ(tokenizer->end_ids(), (Ids{kEos, 260, 261}));
  EXPECT_TRUE(tokenizer->is_end(261));
  EXPECT_FALSE(tokenizer->is_end(262));
}

TEST(GgufTokenizer, EachFault) {
  const auto refuse = [](const char* key, const Metadata::Value& value, const char* message) {
    Metadata metadata = test::byte_vocabulary({"<s>", "</s>"});
    metadata.set(key, value);
    expect_error(ErrorKind::Input, message, [&] { make_gguf_tokenizer(metadata); });
  };
  using Texts = std::vector<std::string>;
  refuse("tokenizer.ggml.model", "bert", "supported are llama, gpt2");
  refuse("tokenizer.ggml.model", uint64_t{1}, "tokenizer.ggml.model");
  refuse("tokenizer.ggml.pre", "none such", "supported are gpt-2 phi-2");
  refuse("tokenizer.ggml.pre", "tek", "\"tek\" is not supported");
  refuse("tokenizer.ggml.tokens", Texts{}, "0 elements");
  refuse("tokenizer.ggml.tokens", "text", "tokenizer.ggml.tokens");
  refuse("tokenizer.ggml.scores", std::vector<double>(3), "has 3 elements");
  refuse("tokenizer.ggml.token_type", std::vector<int64_t>(3, 1), "has 3 elements");
  refuse("tokenizer.ggml.token_type", std::vector<int64_t>(260, 7), "is 7, expected 1 to 6");
  refuse("tokenizer.ggml.token_type", std::vector<int64_t>(260, 6), "looks like <0x0A>");
  refuse("tokenizer.ggml.bos_token_id", uint64_t{260}, "is 260, the vocabulary has 260");
  refuse("tokenizer.ggml.eot_token_id", int64_t{-2}, "eot_token_id");
  refuse("tokenizer.ggml.merges", Texts{"ab"}, "a blank between");
  refuse("tokenizer.ggml.merges", Texts{"a xyz"}, "is not in the vocabulary");
  refuse("tokenizer.ggml.merges", Texts{"b a"}, "\"ba\" is not in the vocabulary");
}

// Vocabularies as old as llama.cpp's first have neither kinds nor a key for BOS.
TEST(GgufTokenizer, WithoutKinds) {
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>", "▁", "a"};
  for (int byte = 0; byte < 256; ++byte) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", byte);
    tokens.push_back(text);
  }
  Metadata metadata;
  metadata.set("tokenizer.ggml.model", "llama");
  metadata.set("tokenizer.ggml.tokens", tokens);
  metadata.set("tokenizer.ggml.bos_token_id", uint64_t{1});
  const auto tokenizer = make_gguf_tokenizer(metadata);
  EXPECT_EQ(tokenizer->encode("ab", {}), (Ids{1, 3, 4, 5 + 'b'}));
  EXPECT_EQ(tokenizer->decode(Ids{1, 3, 4, 5 + 'b'}), "ab");
  metadata.set("tokenizer.ggml.add_space_prefix", false);
  EXPECT_EQ(make_gguf_tokenizer(metadata)->encode("ab", {}), (Ids{1, 4, 5 + 'b'}));
}

class SideFiles : public testing::Test {
 protected:
  SideFiles() {
    SentencePieceModel model;
    model.type = SentencePieceModel::Bpe;
    model.remove_extra_whitespaces = false;
    model.pieces = {{"<unk>", 0, 2}, {"<s>", 0, 3}, {"</s>", 0, 3}, {"▁", -1, 1}, {"a", -2, 1}};
    dir_.write("tokenizer.model", serialize_tokenizer_model(model));
  }
  test::TempDir dir_;
};

TEST_F(SideFiles, TokenizerConfig) {
  dir_.write("tokenizer_config.json", R"({"add_bos_token": false, "bos_token": {"content": "</s>"},
    "eos_token": "<|im_end|>", "added_tokens_decoder": {
      "6": {"content": "<tool>", "special": false},
      "5": {"content": "<|im_end|>", "special": true}},
    "chat_template": [{"name": "tool_use", "template": "no"},
                      {"name": "default", "template": "yes"}]})");
  dir_.write("generation_config.json", R"({"eos_token_id": [5, 2]})");
  const auto tokenizer = load_tokenizer(dir_.path());
  EXPECT_EQ(tokenizer->n_tokens(), 7);
  EXPECT_EQ(tokenizer->bos(), 2);
  EXPECT_EQ(tokenizer->eos(), 5);
  EXPECT_FALSE(tokenizer->adds_bos());
  EXPECT_TRUE(tokenizer->is_end(2));
  EXPECT_EQ(tokenizer->chat_template(), "yes");
  EXPECT_EQ(tokenizer->encode("a<tool>a", {}), (Ids{3, 4, 6, 3, 4}));
  EXPECT_EQ(tokenizer->encode("a<|im_end|>", {.parse_special = true}), (Ids{3, 4, 5}));
  EXPECT_EQ(tokenizer->decode(Ids{3, 4, 6, 4}), "a<tool>a");
}

TEST_F(SideFiles, ChatTemplateOfItsOwn) {
  dir_.write("chat_template.jinja", "{{ x }}");
  EXPECT_EQ(load_tokenizer(dir_.path())->chat_template(), "{{ x }}");
}

TEST_F(SideFiles, EachFault) {
  const auto refuse = [&](const char* name, const char* text, const char* message) {
    const std::string path = dir_.write(name, text);
    expect_error(ErrorKind::Input, message, [&] { load_tokenizer(dir_.path()); });
    expect_error(ErrorKind::Input, name, [&] { load_tokenizer(dir_.path()); });
    std::filesystem::remove(path);
  };
  refuse("tokenizer_config.json", "{", "malformed JSON");
  refuse("tokenizer_config.json", R"({"add_bos_token": "yes"})", "wrong type");
  refuse("tokenizer_config.json", R"({"added_tokens_decoder": {"x": {"content": "a"}}})",
         "is not an id");
  refuse("tokenizer_config.json", R"({"added_tokens_decoder": {"4": {"content": "b"}}})",
         "has id 4, which is \"a\"");
  refuse("tokenizer_config.json", R"({"added_tokens_decoder": {"99999": {"content": "b"}}})",
         "has id 99999");
  refuse("generation_config.json", R"({"eos_token_id": "2"})", "not an integer");
  refuse("added_tokens.json", R"({"b": "c"})", "wrong type");
}

TEST(HfJson, RefusesWhatItDoesNotKnowByName) {
  const test::TempDir dir;
  const auto refuse = [&](const char* part, const char* message) {
    nlohmann::json root =
        nlohmann::json::parse(R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})");
    root.merge_patch(nlohmann::json::parse(part));
    const std::string path = dir.write("tokenizer.json", root.dump());
    expect_error(ErrorKind::Input, message, [&] { load_tokenizer(path); });
  };
  refuse(R"({"model": {"type": "WordPiece"}})", "model \"WordPiece\" is not supported");
  refuse(R"({"model": {"end_of_word_suffix": "</w>"}})", "end_of_word_suffix");
  refuse(R"({"model": {"dropout": 0.1}})", "dropout");
  refuse(R"({"model": {"vocab": {"b": 99999}}})", "has id 99999");
  refuse(R"({"model": {"merges": ["a a"]}})", "\"aa\" is not in the vocabulary");
  refuse(R"({"model": {"merges": ["aa"]}})", "expected two parts");
  refuse(R"({"normalizer": {"type": "Lowercase"}})", "normalizer \"Lowercase\"");
  refuse(R"({"pre_tokenizer": {"type": "UnicodeScripts"}})", "pre_tokenizer \"UnicodeScr");
  refuse(R"({"pre_tokenizer": {"type": "Split", "behavior": "Isolated",
             "pattern": {"Regex": "("}}})",
         "pattern \"(\"");
  refuse(R"({"pre_tokenizer": {"type": "Split", "behavior": "Isolated",
             "pattern": {"Regex": "(a)\\1"}}})",
         "back references");
  refuse(R"({"decoder": {"type": "WordPiece"}})", "decoder \"WordPiece\"");
  refuse(R"({"post_processor": {"type": "Nope"}})", "post_processor \"Nope");
  refuse(R"({"model": {"vocab": null}})", "not a tokenizer.json");
}

}  // namespace
}  // namespace minfer
