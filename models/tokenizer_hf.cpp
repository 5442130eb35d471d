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

const json kNull;

const json& member(const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}

void read_vocabulary(const json& vocab, TokenizerSpec& spec) {
  std::vector<std::pair<int64_t, const std::string*>> pieces;
  for (const auto& [text, id] : vocab.get_ref<const json::object_t&>())
    pieces.emplace_back(id.get<int64_t>(), &text);
  std::ranges::sort(pieces);
  for (const auto& [id, text] : pieces) set_added_piece(spec, id, *text, PieceKind::Normal);
}

void read_added_tokens(const json& tokens, TokenizerSpec& spec) {
  std::vector<std::pair<int64_t, const json*>> by_id;
  for (const json& token : tokens) by_id.emplace_back(token.at("id").get<int64_t>(), &token);
  std::ranges::sort(by_id);
  for (const auto& [id, token] : by_id) {
    const auto text = token->at("content").get<std::string>();
    MINFER_REQUIRE(Input, !token->value("single_word", false), "added token \"", shortened(text),
                   "\": single_word is not supported");
    set_added_piece(spec, id, text,
                    token->value("special", false) ? PieceKind::Control : PieceKind::UserDefined);
    const auto piece_id = static_cast<TokenId>(id);
    if (token->value("lstrip", false)) spec.left_stripping.push_back(piece_id);
    if (token->value("rstrip", false)) spec.right_stripping.push_back(piece_id);
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
    const size_t blank = text.find(' ');
    MINFER_REQUIRE(Input, blank != text.npos && text.find(' ', blank + 1) == text.npos, "merge ",
                   merges.size(), " is \"", shortened(text), "\", expected two parts");
    merges.emplace_back(text.substr(0, blank), text.substr(blank + 1));
  }
  return merges;
}

void read_model(const json& model, TokenizerSpec& spec, BpeOptions& options, Merges& merges) {
  const auto type = model.at("type").get<std::string>();
  MINFER_REQUIRE(Input, type == "BPE", "model \"", shortened(type),
                 "\" is not supported; supported is BPE");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const json& affix = member(model, key);
    MINFER_REQUIRE(Input, affix.is_null() || affix == "", "model: ", key, " is not supported");
  }
  const json& dropout = member(model, "dropout");
  MINFER_REQUIRE(Input, dropout.is_null() || dropout == 0, "model: dropout is not supported");
  read_vocabulary(model.at("vocab"), spec);
  merges = read_merges(model.at("merges"));
  options.byte_fallback = model.value("byte_fallback", false);
  options.fuse_unknown = model.value("fuse_unk", false);
  options.ignore_merges = model.value("ignore_merges", false);
  if (options.byte_fallback) {
    for (Piece& piece : spec.pieces)
      if (byte_of_piece(piece.text) >= 0) piece.kind = PieceKind::Byte;
  }
  if (const json& unknown = member(model, "unk_token"); !unknown.is_null()) {
    const auto& text = unknown.get_ref<const std::string&>();
    const auto found = std::ranges::find(spec.pieces, text, &Piece::text);
    if (found != spec.pieces.end())
      spec.unknown = static_cast<TokenId>(found - spec.pieces.begin());
  }
}

std::unique_ptr<Tokenizer> make_tokenizer(const json& root, const SmallFiles& beside) {
  TokenizerSpec spec;
  BpeOptions options;
  Merges merges;
  read_model(root.at("model"), spec, options, merges);
  if (const json& added = member(root, "added_tokens"); !added.is_null())
    read_added_tokens(added, spec);
  read_hf_normalizer(member(root, "normalizer"), options);
  read_hf_pre_tokenizer(member(root, "pre_tokenizer"), options);
  read_hf_decoder(member(root, "decoder"), options);
  read_hf_post_processor(member(root, "post_processor"), spec);
  apply_hf_side_files(beside, spec);
  spec.kind = options.byte_level ? "byte-level BPE" : "SentencePiece-style BPE";
  return std::make_unique<BpeTokenizer>(std::move(spec), std::move(options), merges);
}

}  // namespace

std::unique_ptr<Tokenizer> load_hf_json(std::string_view text, const SmallFiles& beside) {
  const json root = parse_strict_json(text);
  try {
    return make_tokenizer(root, beside);
  } catch (const json::exception& e) {  // a member that is missing or of another type
    std::string_view reason = e.what();
    reason.remove_prefix(std::min(reason.size(), reason.find("] ") + 2));
    throw Error(ErrorKind::Input, cat("not a tokenizer.json: ", shortened(reason, 200)));
  }
}

}  // namespace minfer
