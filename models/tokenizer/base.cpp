#include "models/tokenizer/base.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace minfer {
namespace {

// Tokens that end a turn or a text in the models that have them, whatever the file says of them:
// converters have marked them as ordinary pieces, and name only one as the end.
constexpr const char* kEndPieces[] = {
    "</s>",          "<|im_end|>",      "<|eot_id|>",      "<|eom_id|>",   "<|end|>",
    "<|endoftext|>", "<|end_of_text|>", "<|end_of_turn|>", "<end_of_turn>"};

bool has(const std::vector<TokenId>& ids, TokenId id) {
  return std::ranges::find(ids, id) != ids.end();
}

// Those of `tokens` that fit, with the control tokens in front: where texts are alike, they count.
template <typename Fits>
AddedTokens members(const std::vector<AddedToken>& tokens, const Fits& fits) {
  std::vector<AddedToken> chosen;
  for (const bool special : {true, false})
    for (const AddedToken& token : tokens)
      if (token.special == special && fits(token)) chosen.push_back(token);
  return AddedTokens(chosen);
}

// The tokens that are found in the text: those that the file lists, then those that are marked.
std::vector<AddedToken> found_tokens(const TokenizerSpec& spec, const Vocabulary& vocabulary) {
  std::vector<AddedToken> found = spec.added;
  if (!spec.finds_unlisted) return found;
  std::vector<bool> listed(static_cast<size_t>(vocabulary.size()));
  for (const AddedToken& token : spec.added) listed[static_cast<size_t>(token.id)] = true;
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    const Piece& piece = vocabulary[id];
    const bool special = piece.kind == PieceKind::Control;
    const bool user_defined =
        piece.kind == PieceKind::UserDefined && id >= spec.first_found_user_defined;
    if (!special && !user_defined) continue;
    if (listed[static_cast<size_t>(id)] || vocabulary.find(piece.text) != id) continue;
    found.push_back({.id = id, .text = piece.text, .special = special});
  }
  return found;
}

}  // namespace

VocabularyTokenizer::VocabularyTokenizer(TokenizerSpec spec)
    : vocabulary_(std::move(spec.pieces)), unknown_(spec.unknown) {
  const auto require_in_range = [&](const char* name, TokenId id) {
    MINFER_REQUIRE(Input, id == -1 || vocabulary_.contains(id), name, " token id ", id,
                   " is outside the vocabulary of ", vocabulary_.size(), " pieces");
  };
  require_in_range("BOS", spec.bos);
  require_in_range("EOS", spec.eos);
  require_in_range("unknown", spec.unknown);
  for (const TokenId id : spec.end_ids) require_in_range("end-of-turn", id);
  for (const AddedToken& token : spec.added) require_in_range("added", token.id);

  n_tokens_ = vocabulary_.size();
  bos_ = spec.bos;
  eos_ = spec.eos;
  adds_bos_ = spec.adds_bos && bos_ >= 0;
  chat_template_ = std::move(spec.chat_template);
  warnings_ = std::move(spec.warnings);
  kind_ = std::move(spec.kind);
  notes_ = std::move(spec.notes);

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

  added_ = found_tokens(spec, vocabulary_);
  all_ = members(added_, [](const AddedToken& token) { return !token.normalized; });
  user_defined_ =
      members(added_, [](const AddedToken& token) { return !token.normalized && !token.special; });
  const auto is_normalized_control = [](const AddedToken& token) {
    return token.normalized && token.special;
  };
  if (std::ranges::any_of(added_, is_normalized_control)) {
    all_control_ =
        members(added_, [](const AddedToken& token) { return !token.normalized || token.special; });
  }
}

std::vector<TokenId> VocabularyTokenizer::encode(std::span<const TextPart> parts,
                                                 bool add_bos) const {
  const bool parse_special = std::ranges::all_of(parts, &TextPart::parse_special);
  const AddedTokens& controls = parse_special || all_control_.empty() ? all_ : all_control_;
  std::string text;
  std::vector<AddedTokens::Match> matches;
  for (const TextPart& part : parts) {
    (part.parse_special ? controls : user_defined_).find(part.text, text.size(), matches);
    text += part.text;
  }
  const std::vector<TextFragment> fragments = cut_at(text, matches);

  std::vector<TokenId> ids;
  if (add_bos && adds_bos_) ids.push_back(bos_);
  for (const TextFragment& fragment : fragments) {
    if (fragment.id >= 0) {
      ids.push_back(fragment.id);
      continue;
    }
    const auto between =
        std::string_view(text).substr(fragment.begin, fragment.end - fragment.begin);
    encode_text(between, {fragment.begin == 0, parse_special}, ids);
  }
  const bool twice = add_bos && adds_bos_ && ids.size() > 1 && ids[1] == bos_;
  if (twice) ids.erase(ids.begin());
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
  if (piece.kind == PieceKind::Control) return special ? piece.text : "";
  return plain_bytes(piece);
}

std::string VocabularyTokenizer::piece(TokenId id) const {
  MINFER_REQUIRE(Usage, vocabulary_.contains(id), "token id ", id, " is outside the vocabulary of ",
                 vocabulary_.size(), " pieces");
  return vocabulary_[id].text;
}

}  // namespace minfer
