#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "loaders/strict_json.h"
#include "models/tokenizer_bpe.h"
#include "models/tokenizer_formats.h"
#include "models/tokenizer_hf_parts.h"
#include "models/tokenizer_hf_side_files.h"

namespace minfer {
namespace {

using nlohmann::json;
using Merges = std::vector<std::pair<std::string, std::string>>;

constexpr size_t kMaxPieces = 1 << 20;

const json kNull;

const json& member(const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}

void read_vocabulary(const json& vocab, TokenizerSpec& spec) {
  const auto& entries = vocab.get_ref<const json::object_t&>();
  MINFER_REQUIRE(Input, entries.size() <= kMaxPieces, "the vocabulary has ", entries.size(),
                 " pieces, expected at most ", kMaxPieces);
  const auto n_entries = static_cast<int64_t>(entries.size());
  for (const auto& [text, value] : entries) {
    const auto id = value.get<int64_t>();
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
    require_known_fields(json, "added token", {"id", "content", "single_word", "lstrip", "rstrip",
                                               "normalized", "special"});
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

// Each "left right", or ["left", "right"] in newer files.
Merges read_merges(const json& list) {
  Merges merges;
  merges.reserve(list.size());
  for (const json& merge : list) {
    if (merge.is_array()) {
      MINFER_REQUIRE(Input, merge.size() == 2, "merge ", merges.size(), " has ", merge.size(),
                     " parts, expected 2");
      merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
      continue;
    }
    const auto& text = merge.get_ref<const std::string&>();
    if (text.starts_with("#version")) continue;
    const size_t blank = text.find(' ');
    MINFER_REQUIRE(Input, blank != text.npos && text.find(' ', blank + 1) == text.npos, "merge ",
                   merges.size(), " is \"", shortened(text), "\", expected two parts");
    merges.emplace_back(text.substr(0, blank), text.substr(blank + 1));
  }
  return merges;
}

// Files of the first versions do not name it.
std::string type_of(const json& model) {
  if (model.contains("type")) return model.at("type").get<std::string>();
  MINFER_REQUIRE(Input, model.contains("vocab") && model.contains("merges"),
                 "model: it has no type, and no vocab and merges, so that it is not BPE");
  return "BPE";
}

void read_model(json& model, TokenizerSpec& spec, BpeOptions& options, Merges& merges) {
  const std::string type = type_of(model);
  MINFER_REQUIRE(Input, type == "BPE", "model \"", shortened(type),
                 "\" is not supported; supported is BPE");
  require_known_fields(model, "model",
                       {"type", "dropout", "unk_token", "continuing_subword_prefix",
                        "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges", "vocab",
                        "merges"});
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const json& affix = member(model, key);
    MINFER_REQUIRE(Input, affix.is_null() || affix == "", "model: ", key, " is not supported");
  }
  const json& dropout = member(model, "dropout");
  MINFER_REQUIRE(Input, dropout.is_null() || dropout == 0, "model: dropout is not supported");
  read_vocabulary(model.at("vocab"), spec);
  model["vocab"] = nullptr;  // memory
  merges = read_merges(model.at("merges"));
  model["merges"] = nullptr;
  options.byte_fallback = model.value("byte_fallback", false);
  options.fuse_unknown = model.value("fuse_unk", false);
  options.ignore_merges = model.value("ignore_merges", false);
  options.joins_over_unknown = true;
  if (options.byte_fallback) {
    for (Piece& piece : spec.pieces)
      if (byte_of_piece(piece.text) >= 0) piece.kind = PieceKind::Byte;
  }
}

std::unique_ptr<Tokenizer> make_tokenizer(json& root, const SmallFiles& beside) {
  // What truncation and padding say is for batches of texts: nothing is cut or filled up here.
  require_known_fields(root, "tokenizer.json",
                       {"version", "truncation", "padding", "added_tokens", "normalizer",
                        "pre_tokenizer", "post_processor", "decoder", "model"});
  TokenizerSpec spec;
  BpeOptions options;
  Merges merges;
  read_model(root.at("model"), spec, options, merges);
  const size_t n_model = spec.pieces.size();
  PieceIndex index(spec);
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
  spec.kind = options.byte_level ? "byte-level BPE" : "SentencePiece-style BPE";
  return std::make_unique<BpeTokenizer>(std::move(spec), std::move(options), merges);
}

}  // namespace

std::unique_ptr<Tokenizer> load_hf_json(std::string_view text, const SmallFiles& beside) {
  json root = parse_strict_json(text);
  try {
    return make_tokenizer(root, beside);
  } catch (const json::exception& e) {  // a member that is missing or of another type
    std::string_view reason = e.what();
    reason.remove_prefix(std::min(reason.size(), reason.find("] ") + 2));
    throw Error(ErrorKind::Input, cat("not a tokenizer.json: ", shortened(reason, 200)));
  }
}

}  // namespace minfer
