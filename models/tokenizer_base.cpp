#include "models/tokenizer_base.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace minfer {
namespace {

// Tokens that end a turn or a text in the models that have them, whatever the file says of them:
// converters have marked them as ordinary pieces, and name only one as the end.
constexpr const char* kEndPieces[] = {
    "</s>",          "<|im_end|>",      "<|eot_id|>",      "<|eom_id|>",   "<|end|>",
    "<|endoftext|>", "<|end_of_text|>", "<|end_of_turn|>", "<end_of_turn>"};

constexpr std::string_view kWhiteSpace = " \t\n\r\f\v";

bool has(const std::vector<TokenId>& ids, TokenId id) {
  return std::ranges::find(ids, id) != ids.end();
}

}  // namespace

VocabularyTokenizer::VocabularyTokenizer(TokenizerSpec spec)
    : vocabulary_(std::move(spec.pieces)),
      unknown_(spec.unknown),
      left_stripping_(std::move(spec.left_stripping)),
      right_stripping_(std::move(spec.right_stripping)) {
  const auto require_in_range = [&](const char* name, TokenId id) {
    MINFER_REQUIRE(Input, id == -1 || vocabulary_.contains(id), name, " token id ", id,
                   " is outside the vocabulary of ", vocabulary_.size(), " pieces");
  };
  require_in_range("BOS", spec.bos);
  require_in_range("EOS", spec.eos);
  require_in_range("unknown", spec.unknown);
  for (const TokenId id : spec.end_ids) require_in_range("end-of-turn", id);

  n_tokens_ = vocabulary_.size();
  bos_ = spec.bos;
  eos_ = spec.eos;
  adds_bos_ = spec.adds_bos && bos_ >= 0;
  chat_template_ = std::move(spec.chat_template);
  warnings_ = std::move(spec.warnings);
  kind_ = std::move(spec.kind);

  // Files without kinds have ordinary pieces there.
  for (const TokenId id : {bos_, eos_}) {
    if (id >= 0 && vocabulary_[id].kind != PieceKind::Unknown)
      vocabulary_.set_kind(id, PieceKind::Control);
  }
  if (eos_ >= 0) end_ids_.push_back(eos_);
  for (const TokenId id : spec.end_ids)
    if (id >= 0 && !has(end_ids_, id)) end_ids_.push_back(id);
  for (const char* text : kEndPieces) {
    const TokenId id = vocabulary_.find(text);
    if (id < 0) continue;
    vocabulary_.set_kind(id, PieceKind::Control);
    if (!has(end_ids_, id)) end_ids_.push_back(id);
  }

  for (TokenId id = 0; id < vocabulary_.size(); ++id) {
    const Piece& piece = vocabulary_[id];
    if (vocabulary_.find(piece.text) != id) continue;
    const bool user_defined =
        piece.kind == PieceKind::UserDefined && id >= spec.first_found_user_defined;
    if (user_defined) user_defined_.add(piece.text, id);
    if (user_defined || piece.kind == PieceKind::Control) special_.add(piece.text, id);
  }
}

std::vector<VocabularyTokenizer::Fragment> VocabularyTokenizer::fragments_of(
    std::span<const TextPart> parts) const {
  std::vector<Fragment> fragments;
  const auto append_text = [&](std::string_view text) {
    if (text.empty()) return;
    if (fragments.empty() || fragments.back().id >= 0) fragments.push_back({-1, {}});
    fragments.back().text += text;
  };
  for (const TextPart& part : parts) {
    const StringSet& searched = part.parse_special ? special_ : user_defined_;
    const std::string_view text = part.text;
    size_t done = 0;
    for (size_t at = 0; at < text.size();) {
      const StringSet::Match match = searched.longest_at(text.substr(at));
      if (match.id < 0) {
        ++at;
        continue;
      }
      append_text(text.substr(done, at - done));
      fragments.push_back({match.id, {}});
      at += match.n_bytes;
      done = at;
    }
    append_text(text.substr(done));
  }
  for (size_t i = 0; i < fragments.size(); ++i) {
    std::string& text = fragments[i].text;
    if (i > 0 && has(right_stripping_, fragments[i - 1].id))
      text.erase(0, std::min(text.size(), text.find_first_not_of(kWhiteSpace)));
    if (i + 1 < fragments.size() && has(left_stripping_, fragments[i + 1].id))
      text.erase(text.find_last_not_of(kWhiteSpace) + 1);
  }
  return fragments;
}

std::vector<TokenId> VocabularyTokenizer::encode(std::span<const TextPart> parts,
                                                 bool add_bos) const {
  const std::vector<Fragment> fragments = fragments_of(parts);
  std::vector<TokenId> ids;
  const bool has_bos = !fragments.empty() && fragments[0].id == bos_;
  if (add_bos && adds_bos_ && !has_bos) ids.push_back(bos_);
  for (size_t i = 0; i < fragments.size(); ++i) {
    if (fragments[i].id >= 0)
      ids.push_back(fragments[i].id);
    else if (!fragments[i].text.empty())
      encode_text(fragments[i].text, i == 0, ids);
  }
  return ids;
}

// Some files give the unknown token an id that marks the text's ends too: then it is that.
bool VocabularyTokenizer::is_unknown(TokenId id) const {
  if (vocabulary_[id].kind == PieceKind::Unknown) return true;
  return id == unknown_ && id != bos_ && !is_end(id);
}

std::string VocabularyTokenizer::token_bytes(TokenId id, bool special) const {
  MINFER_REQUIRE(Usage, vocabulary_.contains(id), "token id ", id, " is outside the vocabulary of ",
                 vocabulary_.size(), " pieces");
  const Piece& piece = vocabulary_[id];
  if (is_unknown(id)) return special ? piece.text : "\ufffd";
  switch (piece.kind) {
    case PieceKind::Control:
      return special ? piece.text : "";
    case PieceKind::Byte:
      return {static_cast<char>(byte_of_piece(piece.text))};
    default:
      return plain_bytes(piece);
  }
}

std::string VocabularyTokenizer::piece(TokenId id) const {
  MINFER_REQUIRE(Usage, vocabulary_.contains(id), "token id ", id, " is outside the vocabulary of ",
                 vocabulary_.size(), " pieces");
  return vocabulary_[id].text;
}

}  // namespace minfer
