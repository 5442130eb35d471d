#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "loaders/strict_json.h"
#include "models/tokenizer/bpe.h"
#include "models/tokenizer/formats.h"
#include "models/tokenizer/hf_parts.h"
#include "models/tokenizer/hf_side_files.h"
#include "models/tokenizer/unigram.h"

namespace minfer {
namespace {

using nlohmann::json;
using Merges = std::vector<std::pair<std::string, std::string>>;

// Published vocabularies have up to some 262,000 pieces and 580,000 merges.
constexpr size_t kMaxPieces = 400'000, kMaxMerges = 750'000;

const json kNull;

const json& member(const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}

// What is taken out of the model while the file is read: as a document it would be many times as
// large.
struct ModelLists {
  std::vector<std::pair<std::string, int64_t>> ids;    // BPE: the vocabulary
  std::vector<std::pair<std::string, double>> scores;  // Unigram: the vocabulary
  Merges merges;
};

void take_piece(std::string&& key, const json& value, ModelLists& lists) {
  MINFER_REQUIRE(Input, lists.ids.size() + lists.scores.size() < kMaxPieces,
                 "the vocabulary has more than ", kMaxPieces, " pieces");
  if (!value.is_array()) {
    lists.ids.emplace_back(std::move(key), value.get<int64_t>());
    return;
  }
  MINFER_REQUIRE(Input, value.size() == 2, "vocab: piece ", lists.scores.size(),
                 " is no text with a score");
  lists.scores.emplace_back(value[0].get<std::string>(), value[1].get<double>());
}

void set_vocabulary(const ModelLists& lists, TokenizerSpec& spec) {
  const auto n_entries = static_cast<int64_t>(lists.ids.size());
  for (const auto& [text, id] : lists.ids) {
    MINFER_REQUIRE(Input, id >= 0 && id < n_entries + kMaxHoles, "token \"", shortened(text),
                   "\" has id ", id, ", the vocabulary has ", n_entries, " pieces");
    set_piece(spec, id, text, PieceKind::Normal);
  }
}

// Numbers them as `tokenizers` does: a token of the vocabulary keeps its id, others follow in the
// order of the list.
void read_added_tokens(const json& tokens, PieceIndex& index, TokenizerSpec& spec) {
  const auto n_model = static_cast<int64_t>(index.size());
  int64_t next = n_model;
  for (const json& json : tokens) {
    require_known_fields(
        json, "added token",
        {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token = read_added_token(json);
    if (token.text.empty()) continue;
    token.id = index.find(token.text);
    if (token.id < 0) token.id = static_cast<TokenId>(next);
    if (token.id >= next) next = token.id + 1;
    if (const auto listed = json.at("id").get<int64_t>(); listed != token.id) {
      spec.warnings.push_back(cat("added token \"", shortened(token.text), "\" has id ", listed,
                                  " in the list, but is ", token.id,
                                  ": added tokens follow the vocabulary one by one"));
    }
    add_token(spec, index, std::move(token));
  }
}

// "left right", or ["left", "right"] in newer files.
void take_merge(const json& merge, Merges& merges) {
  MINFER_REQUIRE(Input, merges.size() < kMaxMerges, "more than ", kMaxMerges, " merges");
  if (merge.is_array()) {
    MINFER_REQUIRE(Input, merge.size() == 2, "merge ", merges.size(), " has ", merge.size(),
                   " parts, expected 2");
    merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
    return;
  }
  const auto& text = merge.get_ref<const std::string&>();
  if (text.starts_with("#version")) return;
  const size_t blank = text.find(' ');
  MINFER_REQUIRE(Input, blank != text.npos && text.find(' ', blank + 1) == text.npos, "merge ",
                 merges.size(), " is \"", shortened(text), "\", expected two parts");
  merges.emplace_back(text.substr(0, blank), text.substr(blank + 1));
}

// Files of the first versions do not name it.
std::string type_of(const json& model) {
  if (model.contains("type")) return model.at("type").get<std::string>();
  if (model.contains("vocab") && model.contains("merges")) return "BPE";
  MINFER_REQUIRE(Input, model.contains("vocab") && model.at("vocab").is_array(),
                 "model: it has no type, and the fields of neither BPE nor Unigram");
  return "Unigram";
}

void mark_bytes(TokenizerSpec& spec) {
  for (Piece& piece : spec.pieces)
    if (byte_of_piece(piece.text) >= 0) piece.kind = PieceKind::Byte;
}

void read_unigram(const json& model, const ModelLists& lists, TokenizerSpec& spec,
                  BpeOptions& options) {
  require_known_fields(model, "model", {"type", "unk_id", "vocab", "byte_fallback"});
  MINFER_REQUIRE(Input, model.at("vocab").is_array(), "vocab of Unigram is no list");
  for (const auto& [text, score] : lists.scores) spec.pieces.push_back({text});
  if (const json& unknown = member(model, "unk_id"); !unknown.is_null()) {
    const auto id = unknown.get<int64_t>();
    MINFER_REQUIRE(Input, id >= 0 && id < static_cast<int64_t>(spec.pieces.size()), "unk_id is ",
                   id, ", the vocabulary has ", spec.pieces.size(), " pieces");
    spec.unknown = static_cast<TokenId>(id);
  }
  options.byte_fallback = model.value("byte_fallback", false);
  if (options.byte_fallback) mark_bytes(spec);
}

void read_bpe(const json& model, const ModelLists& lists, TokenizerSpec& spec,
              BpeOptions& options) {
  require_known_fields(
      model, "model",
      {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
       "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  MINFER_REQUIRE(Input, model.at("vocab").is_object() && model.at("merges").is_array(),
                 "vocab and merges of BPE are no object and no list");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const json& affix = member(model, key);
    MINFER_REQUIRE(Input, affix.is_null() || affix == "", "model: ", key, " is not supported");
  }
  const json& dropout = member(model, "dropout");
  MINFER_REQUIRE(Input, dropout.is_null() || dropout == 0, "model: dropout is not supported");
  set_vocabulary(lists, spec);
  options.byte_fallback = model.value("byte_fallback", false);
  options.fuse_unknown = model.value("fuse_unk", false);
  options.ignore_merges = model.value("ignore_merges", false);
  options.joins_over_unknown = true;
  if (options.byte_fallback) mark_bytes(spec);
}

size_t n_pieces_with_text(const TokenizerSpec& spec) {
  return static_cast<size_t>(
      std::ranges::count_if(spec.pieces, [](const Piece& piece) { return !piece.text.empty(); }));
}

// All but the model.
void read_parts(const json& root, const SmallFiles& beside, TokenizerSpec& spec,
                BpeOptions& options) {
  const size_t n_model = spec.pieces.size();
  PieceIndex index(spec);
  MINFER_REQUIRE(Input, index.size() == n_pieces_with_text(spec),
                 "a text is in the vocabulary twice");
  if (const json& unknown = member(root.at("model"), "unk_token"); !unknown.is_null())
    spec.unknown = index.find(unknown.get<std::string>());
  if (const json& added = member(root, "added_tokens"); !added.is_null())
    read_added_tokens(added, index, spec);
  read_hf_normalizer(member(root, "normalizer"), options);
  read_hf_pre_tokenizer(member(root, "pre_tokenizer"), options);
  read_hf_decoder(member(root, "decoder"), options);
  read_hf_post_processor(member(root, "post_processor"), spec);
  spec.finds_unlisted = false;
  apply_hf_side_files(beside, index, spec);
  options.outside_model.assign(n_model, false);
  options.outside_model.resize(spec.pieces.size(), true);
}

std::unique_ptr<Tokenizer> make_tokenizer(const json& root, ModelLists lists,
                                          const SmallFiles& beside) {
  // What truncation and padding say is for batches of texts: nothing is cut or filled up here.
  require_known_fields(root, "tokenizer.json",
                       {"version", "truncation", "padding", "added_tokens", "normalizer",
                        "pre_tokenizer", "post_processor", "decoder", "model"});
  TokenizerSpec spec;
  BpeOptions options;
  const json& model = root.at("model");
  const std::string type = type_of(model);
  if (type == "BPE")
    read_bpe(model, lists, spec, options);
  else if (type == "Unigram")
    read_unigram(model, lists, spec, options);
  else
    throw Error(ErrorKind::Input, cat("model \"", shortened(type),
                                      "\" is not supported; supported are BPE, Unigram"));
  lists.ids = {};  // memory
  read_parts(root, beside, spec, options);
  if (type == "Unigram") {
    MINFER_REQUIRE(Input, !options.byte_level, "model Unigram with ByteLevel is not supported");
    spec.kind = "Unigram";
    std::vector<double> scores;
    for (const auto& [text, score] : lists.scores) scores.push_back(score);
    return std::make_unique<UnigramTokenizer>(std::move(spec), std::move(options),
                                              std::move(scores));
  }
  spec.kind = options.byte_level ? "byte-level BPE" : "SentencePiece-style BPE";
  return std::make_unique<BpeTokenizer>(std::move(spec), std::move(options), lists.merges);
}

}  // namespace

std::unique_ptr<Tokenizer> load_hf_json(std::string_view text, const SmallFiles& beside) {
  try {
    ModelLists lists;
    const StreamedJson streamed = {
        {{"model", "vocab"},
         [&](std::string&& key, json&& value) { take_piece(std::move(key), value, lists); }},
        {{"model", "merges"},
         [&](std::string&&, json&& merge) { take_merge(merge, lists.merges); }}};
    const json root = parse_strict_json(text, streamed);
    return make_tokenizer(root, std::move(lists), beside);
  } catch (const json::exception& e) {  // a member that is missing or of another type
    std::string_view reason = e.what();
    reason.remove_prefix(std::min(reason.size(), reason.find("] ") + 2));
    throw Error(ErrorKind::Input, cat("not a tokenizer.json: ", shortened(reason, 200)));
  }
}

}  // namespace minfer
