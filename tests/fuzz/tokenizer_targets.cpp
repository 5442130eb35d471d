#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "loaders/tokenizer_model.h"
#include "models/tokenizer/formats.h"
#include "models/tokenizer/tokenizer.h"
#include "tests/fuzz/parser_targets.h"
#include "tests/support/charsmap_builder.h"
#include "tests/support/model_files.h"
#include "tests/support/temp_dir.h"

namespace minfer::test {
namespace {

using nlohmann::json;

// What follows a load: texts there and back. The same bytes give the same texts.
void use(const Tokenizer& tokenizer, const std::string& bytes) {
  Random random(std::hash<std::string>()(bytes));
  std::vector<std::string> pieces;
  for (size_t i = 0; i < 8 && tokenizer.n_tokens() > 0; ++i)
    pieces.push_back(tokenizer.piece(
        static_cast<TokenId>(below(random, static_cast<size_t>(tokenizer.n_tokens())))));
  for (int i = 0; i < 3; ++i) {
    const std::string text = random_text(random, pieces);
    const auto ids = tokenizer.encode(text, {one_in(random, 2), one_in(random, 2)});
    tokenizer.decode(ids, one_in(random, 2));
    for (const TokenId id : ids) {
      if (id < 0 || id >= tokenizer.n_tokens())
        throw Error(ErrorKind::Internal, cat("id ", id, " of ", tokenizer.n_tokens()));
      tokenizer.piece(id);
      tokenizer.is_end(id);
    }
  }
}

// Letters and what merges make of them.
struct Vocabulary {
  std::vector<std::string> pieces;
  std::vector<std::pair<std::string, std::string>> merges;
};

Vocabulary random_vocabulary(Random& random, std::vector<std::string> letters) {
  Vocabulary v{std::move(letters), {}};
  std::set<std::string> known(v.pieces.begin(), v.pieces.end());
  for (size_t n = below(random, 16); n > 0 && !v.pieces.empty(); --n) {
    const std::string left = any_of(random, v.pieces), right = any_of(random, v.pieces);
    if (left.size() + right.size() > 64) continue;
    v.merges.emplace_back(left, right);
    if (known.insert(left + right).second) v.pieces.push_back(left + right);
  }
  return v;
}

const std::vector<std::string> kLetters = {"a",
                                           "b",
                                           "c",
                                           "1",
                                           "2",
                                           " ",
                                           ".",
                                           "\xe2\x96\x81",
                                           "\xc4\xa0",
                                           "\xc4\x8a",
                                           "\xc3\xa9",
                                           "\xc2\xb5",
                                           "\xe4\xbd\xa0",
                                           "\xf0\x9f\xa9\xb7",
                                           "'",
                                           "t"};

json random_pattern(Random& random) {
  const std::string kRegexes[] = {
      "a+", "\\p{L}+|\\p{N}", "\\s+(?!\\S)|\\s+", "(?i:'s|'t)| ?[^\\s]+", "[a-c]{1,3}", "^a", "b$",
      "",   "(a|b)*c",        "\\w+|[^\\w\\s]+"};
  if (one_in(random, 3)) return {{"String", any_of(random, kLetters)}};
  return {{"Regex", any_of(random, kRegexes)}};
}

json sequence(const char* members, std::vector<json> steps, Random& random) {
  if (steps.empty()) return nullptr;
  if (steps.size() == 1 && one_in(random, 2)) return steps[0];
  return {{"type", "Sequence"}, {members, steps}};
}

json random_normalizer(Random& random) {
  std::vector<json> steps;
  for (size_t n = below(random, 4); n > 0; --n) {
    const json kSteps[] = {
        {{"type", "NFC"}},
        {{"type", "NFKC"}},
        {{"type", "NFD"}},
        {{"type", "Lowercase"}},
        {{"type", "StripAccents"}},
        {{"type", "Strip"}, {"strip_left", true}, {"strip_right", one_in(random, 2)}},
        {{"type", "Prepend"}, {"prepend", any_of(random, kLetters)}},
        {{"type", "Replace"},
         {"pattern", random_pattern(random)},
         {"content", any_of(random, kLetters)}},
        {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}},
        {{"type", "Precompiled"}, {"precompiled_charsmap", "AAAA"}}};
    steps.push_back(any_of(random, kSteps));
  }
  return sequence("normalizers", std::move(steps), random);
}

json random_pre_tokenizer(Random& random, bool byte_level) {
  constexpr const char* kBehaviors[] = {"Isolated", "Removed", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
  constexpr const char* kSchemes[] = {"always", "first", "never"};
  std::vector<json> steps;
  for (size_t n = below(random, 3); n > 0; --n) {
    const json kSteps[] = {{{"type", "Split"},
                            {"pattern", random_pattern(random)},
                            {"behavior", any_of(random, kBehaviors)},
                            {"invert", one_in(random, 3)}},
                           {{"type", "Digits"}, {"individual_digits", one_in(random, 2)}},
                           {{"type", "Punctuation"}, {"behavior", any_of(random, kBehaviors)}},
                           {{"type", "Whitespace"}},
                           {{"type", "WhitespaceSplit"}},
                           {{"type", "Metaspace"},
                            {"replacement", "\xe2\x96\x81"},
                            {"prepend_scheme", any_of(random, kSchemes)},
                            {"split", one_in(random, 2)}}};
    steps.push_back(any_of(random, kSteps));
  }
  if (byte_level)
    steps.push_back({{"type", "ByteLevel"},
                     {"add_prefix_space", one_in(random, 2)},
                     {"trim_offsets", true},
                     {"use_regex", one_in(random, 2)}});
  return sequence("pretokenizers", std::move(steps), random);
}

json random_decoder(Random& random, bool byte_level) {
  if (byte_level) return {{"type", "ByteLevel"}};
  std::vector<json> steps = {
      {{"type", "Replace"}, {"pattern", {{"String", "\xe2\x96\x81"}}}, {"content", " "}},
      {{"type", "ByteFallback"}},
      {{"type", "Fuse"}}};
  if (one_in(random, 2))
    steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  if (one_in(random, 4))
    steps = {
        {{"type", "Metaspace"}, {"replacement", "\xe2\x96\x81"}, {"prepend_scheme", "always"}}};
  if (one_in(random, 8)) return nullptr;
  return sequence("decoders", std::move(steps), random);
}

json random_tokenizer_json(Random& random) {
  const bool byte_level = one_in(random, 2);
  const Vocabulary v = random_vocabulary(random, kLetters);
  json vocab = json::object(), merges = json::array(), added = json::array();
  int64_t id = 0;
  for (const std::string& piece : v.pieces) vocab[piece] = id++;
  const bool pairs = one_in(random, 2);
  for (const auto& [left, right] : v.merges)
    merges.push_back(pairs ? json({left, right}) : json(left + " " + right));
  const bool bytes = !byte_level && one_in(random, 3);
  for (int byte = 0; bytes && byte < 256; ++byte) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", byte);
    vocab[text] = id++;
  }
  for (const char* text : {"<s>", "</s>", "<unk>", "ab", " x "}) {
    if (one_in(random, 2)) continue;
    const bool known = vocab.contains(text);
    added.push_back({{"id", known ? vocab[text] : json(id)},
                     {"content", text},
                     {"single_word", one_in(random, 6)},
                     {"lstrip", one_in(random, 3)},
                     {"rstrip", one_in(random, 3)},
                     {"normalized", one_in(random, 3)},
                     {"special", one_in(random, 2)}});
    id += !known;
  }
  json post = nullptr;
  if (!added.empty() && one_in(random, 2)) {
    const std::string text = added[0]["content"];
    post = {{"type", "TemplateProcessing"},
            {"single",
             {{{"SpecialToken", {{"id", text}, {"type_id", 0}}}},
              {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
            {"pair", json::array()},
            {"special_tokens",
             {{text, {{"id", text}, {"ids", {added[0]["id"]}}, {"tokens", {text}}}}}}};
  }
  json model = {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", one_in(random, 2) ? json("a") : json(nullptr)},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"fuse_unk", one_in(random, 2)},
                {"byte_fallback", bytes},
                {"ignore_merges", one_in(random, 2)},
                {"vocab", vocab},
                {"merges", merges}};
  if (one_in(random, 8)) model.erase("type");
  if (one_in(random, 8)) {
    json unigram = json::array();
    for (const auto& [text, number] : vocab.items()) unigram.push_back({text, -1.5});
    model = {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", unigram}, {"byte_fallback", bytes}};
  }
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", random_normalizer(random)},
          {"pre_tokenizer", random_pre_tokenizer(random, byte_level)},
          {"post_processor", post},
          {"decoder", random_decoder(random, byte_level)},
          {"model", model}};
}

// The side files of a tokenizer, one line each: an input is one of them, or the tokenizer, so that
// they are found by name.
std::map<std::string, std::string> side_files() {
  return {
      {"tokenizer_config.json",
       R"({"add_bos_token": true, "add_eos_token": false, "add_prefix_space": true, "legacy": false,
"added_tokens_decoder": {"3": {"content": "<x>", "lstrip": false, "normalized": false, "rstrip": true,
"single_word": false, "special": true}}, "bos_token": "<s>", "eos_token": {"content": "</s>"},
"chat_template": "{{ messages }}", "clean_up_tokenization_spaces": false,
"model_max_length": 1000000000000000019884624838656, "tokenizer_class": "LlamaTokenizer"})"},
      {"generation_config.json",
       R"({"bos_token_id": 1, "eos_token_id": [1, 2], "pad_token_id": 0})"},
      {"special_tokens_map.json", R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>"})"},
      {"added_tokens.json", R"({"<y>": 40, "<z>": 41})"}};
}

// Side files that depend on the input alone; at times damaged.
SmallFiles beside(const std::string& bytes) {
  Random random(std::hash<std::string>()(bytes) + 1);
  std::map<std::string, std::string> files;
  for (const auto& [name, text] : side_files()) {
    if (!one_in(random, 3)) continue;
    files[name] = one_in(random, 2) ? text : mutated_json(text, random);
  }
  return SmallFiles("beside", files);
}

SentencePieceModel random_sentencepiece(Random& random) {
  SentencePieceModel model;
  model.type = one_in(random, 2) ? SentencePieceModel::Bpe : SentencePieceModel::Unigram;
  model.byte_fallback = one_in(random, 3);
  model.add_dummy_prefix = one_in(random, 2);
  model.remove_extra_whitespaces = one_in(random, 2);
  model.escape_whitespaces = !one_in(random, 4);
  model.treat_whitespace_as_suffix = one_in(random, 6);
  model.pieces = {{"<unk>", 0, 2}, {"<s>", 0, 3}, {"</s>", 0, 3}};
  for (int byte = 0; model.byte_fallback && byte < 256; ++byte) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", byte);
    model.pieces.push_back({text, 0, 6});
  }
  float score = 0;
  for (const std::string& piece : random_vocabulary(random, kLetters).pieces) {
    score -= static_cast<float>(below(random, 3));
    model.pieces.push_back({piece, score, one_in(random, 12) ? 4 : one_in(random, 12) ? 5 : 1});
  }
  if (one_in(random, 3)) {
    std::map<std::string, std::string> rules = {{"a", "b"}, {"ab", "c"}, {"\xef\xb7\xba", " "}};
    model.charsmap = CharsmapBuilder(rules).bytes();
  }
  return model;
}

std::string random_gguf(Random& random) {
  const bool bpe = one_in(random, 2);
  const Vocabulary v = random_vocabulary(random, kLetters);
  std::vector<std::string> texts = {"<unk>", "<s>", "</s>"}, merges;
  texts.insert(texts.end(), v.pieces.begin(), v.pieces.end());
  for (const auto& [left, right] : v.merges) merges.push_back(left + " " + right);
  std::vector<float> scores(texts.size());
  std::vector<int32_t> kinds(texts.size(), 1);
  for (float& score : scores) score = -static_cast<float>(below(random, 30));
  kinds[0] = 2;
  kinds[1] = kinds[2] = 3;
  if (one_in(random, 2)) kinds.back() = 4;
  constexpr const char* kNames[] = {"default", "llama-bpe", "gpt-2",  "qwen2",
                                    "smollm",  "tekken",    "falcon", "deepseek-llm",
                                    "gpt-4o",  "starcoder", "nope"};
  const auto text_value = [](const std::string& text) {
    return bytes_of_values(uint64_t{text.size()}) + text;
  };
  GgufBuilder file;
  file.pair("tokenizer.ggml.model", kText, text_value(bpe ? "gpt2" : "llama"))
      .texts("tokenizer.ggml.tokens", texts)
      .array("tokenizer.ggml.token_type", kI32, kinds)
      .pair("tokenizer.ggml.bos_token_id", kU32, bytes_of_values(uint32_t{1}))
      .pair("tokenizer.ggml.eos_token_id", kU32, bytes_of_values(uint32_t{2}))
      .pair("tokenizer.ggml.add_space_prefix", kBool, one_in(random, 2) ? "\1" : std::string(1, 0))
      .pair("tokenizer.chat_template", kText, text_value("{{ messages }}"));
  if (!bpe || one_in(random, 4)) file.array("tokenizer.ggml.scores", kF32, scores);
  if (bpe) file.texts("tokenizer.ggml.merges", merges);
  if (!one_in(random, 4))
    file.pair("tokenizer.ggml.pre", kText, text_value(any_of(random, kNames)));
  return file.build();
}

std::string random_tokenizer_bin(Random& random) {
  std::string bytes = bytes_of_values(int32_t{64});
  const auto put = [&](float score, const std::string& text) {
    bytes += bytes_of_values(score) + bytes_of_values(static_cast<int32_t>(text.size())) + text;
  };
  for (const char* text : {"<unk>", "\n<s>\n", "\n</s>\n"}) put(0, text);
  for (int byte = 0; byte < 256; ++byte) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", byte);
    put(0, text);
  }
  float score = 0;
  for (const std::string& piece : random_vocabulary(random, kLetters).pieces) put(--score, piece);
  return bytes;
}

// A target whose parser reads a file.
FuzzTarget file_target(const char* name, std::function<std::string(Random&)> make) {
  const auto dir = std::make_shared<std::unique_ptr<TempDir>>();
  return {name, std::move(make), [dir](const std::string& bytes) {
            if (*dir == nullptr) *dir = std::make_unique<TempDir>();
            use(*load_tokenizer((*dir)->write("tokenizer", bytes)), bytes);
          }};
}

template <typename Make>
auto often_mutated(Make make) {
  return [make](Random& random) {
    std::string bytes = make(random);
    return one_in(random, 3) ? bytes : mutated(std::move(bytes), random);
  };
}

}  // namespace

void add_tokenizer_targets(std::vector<FuzzTarget>& targets) {
  targets.push_back({"TokenizerJson",
                     [](Random& random) {
                       const std::string text = random_tokenizer_json(random).dump();
                       return one_in(random, 3) ? text : mutated_json(text, random);
                     },
                     [](const std::string& text) { use(*load_hf_json(text, beside(text)), text); },
                     4096});
  targets.push_back(
      {"TokenizerModel", often_mutated([](Random& random) {
         return serialize_tokenizer_model(random_sentencepiece(random));
       }),
       [](const std::string& bytes) { use(*load_sentencepiece(bytes, beside(bytes)), bytes); },
       4096});
  targets.push_back(file_target("TokenizerGguf", often_mutated(random_gguf)));
  targets.push_back(file_target("TokenizerBin", often_mutated(random_tokenizer_bin)));
}

}  // namespace minfer::test
