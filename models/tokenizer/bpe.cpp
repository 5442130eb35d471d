#include "models/tokenizer/bpe.h"

#include <algorithm>
#include <deque>

#include "kernels/base/error.h"
#include "kernels/base/utf8.h"
#include "models/tokenizer/byte_level.h"

namespace minfer {
namespace {

uint64_t pair_key(TokenId left, TokenId right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// The longest stretch at the start of `text` that is UTF-8 throughout, or that is not at all.
size_t uniform_bytes(std::string_view text) {
  const bool valid = utf8_char_bytes(text) > 0;
  size_t at = 0;
  while (at < text.size()) {
    const size_t n = utf8_char_bytes(text.substr(at));
    if ((n > 0) != valid) break;
    at += n > 0 ? n : 1;
  }
  return at;
}

// The added tokens that are found in normalized text, spelled so.
AddedTokens normalized_members(const std::vector<AddedToken>& added, const BpeOptions& options,
                               bool with_special) {
  std::vector<AddedToken> members;
  for (const bool special : {true, false}) {
    for (AddedToken token : added) {
      if (!token.normalized || token.special != special || (special && !with_special)) continue;
      size_t front = 0;
      token.text = normalized(with_valid_utf8(token.text), options.normalizer, front);
      members.push_back(std::move(token));
    }
  }
  return AddedTokens(members);
}

}  // namespace

BpeTokenizer::BpeTokenizer(TokenizerSpec spec, BpeOptions options,
                           const std::vector<std::pair<std::string, std::string>>& merges)
    : VocabularyTokenizer(std::move(spec)),
      options_(std::move(options)),
      normalized_all_(normalized_members(added(), options_, true)),
      normalized_user_defined_(normalized_members(added(), options_, false)) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string spelled = byte_level_spelling(std::string(1, static_cast<char>(byte)));
    byte_ids_[static_cast<size_t>(byte)] = options_.byte_level ? model_id(spelled) : -1;
  }
  // A word can be cut where no piece reaches over, unless what is unknown depends on more than its
  // neighbour.
  const bool spells_all = options_.byte_fallback && vocabulary().spells_bytes();
  const bool spells_none = !options_.byte_fallback || !vocabulary().spells_any_byte();
  can_cut_ = !options_.byte_level && (spells_all || (spells_none && unknown() >= 0));
  if (can_cut_) boundaries_ = Boundaries(vocabulary());
  merges_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left_text, right_text] = merges[rank];
    const auto id_of = [&](const std::string& text) {
      const TokenId id = model_id(text);
      MINFER_REQUIRE(Input, id >= 0, "merge ", rank, ": \"", shortened(text),
                     "\" is not in the vocabulary");
      return id;
    };
    const TokenId left = id_of(left_text), right = id_of(right_text);
    merges_.insert_or_assign(pair_key(left, right),  // of two alike the later counts
                             Merge{static_cast<double>(rank), id_of(left_text + right_text)});
  }
}

bool BpeTokenizer::in_model(TokenId id) const {
  const auto index = static_cast<size_t>(id);
  return index >= options_.outside_model.size() || !options_.outside_model[index];
}

TokenId BpeTokenizer::model_id(std::string_view text) const {
  const TokenId id = vocabulary().find(text);
  return id >= 0 && in_model(id) ? id : -1;
}

void BpeTokenizer::encode_text(std::string_view text, TextPlace place,
                               std::vector<TokenId>& ids) const {
  if (!options_.byte_level) return encode_valid(with_valid_utf8(text), place, ids);
  // Bytes that are no character are a word of their own.
  while (!text.empty()) {
    const size_t n_bytes = uniform_bytes(text);
    const std::string_view stretch = text.substr(0, n_bytes);
    if (utf8_char_bytes(stretch) > 0)
      encode_valid(std::string(stretch), place, ids);
    else
      encode_word(stretch, ids);
    text.remove_prefix(n_bytes);
    place.at_start = false;
  }
}

// `text` is valid UTF-8.
void BpeTokenizer::encode_valid(std::string text, TextPlace place,
                                std::vector<TokenId>& ids) const {
  size_t front = place.at_start ? utf8_char_bytes(text) : 0;
  const std::string whole = normalized(std::move(text), options_.normalizer, front);
  std::vector<AddedTokens::Match> matches;
  (place.parse_special ? normalized_all_ : normalized_user_defined_).find(whole, 0, matches);
  for (const TextFragment& fragment : cut_at(whole, matches)) {
    if (fragment.id >= 0) {
      ids.push_back(fragment.id);
      continue;
    }
    const auto between =
        std::string_view(whole).substr(fragment.begin, fragment.end - fragment.begin);
    encode_words(between, front - std::min(front, fragment.begin), ids);
  }
}

void BpeTokenizer::encode_words(std::string_view text, size_t front,
                                std::vector<TokenId>& ids) const {
  std::deque<std::string> store;
  for (const std::string_view word : options_.words.cut(text, front, store)) {
    throw_if_cancelled();
    if (options_.spelled_words)
      encode_word(byte_level_bytes(word), ids);
    else
      encode_word(word, ids);
  }
}

bool BpeTokenizer::append_bytes(std::string_view character, size_t at,
                                std::vector<Symbol>& symbols) const {
  if (!options_.byte_fallback) return false;
  for (const char byte : character)
    if (vocabulary().byte_id(static_cast<unsigned char>(byte)) < 0) return false;
  for (size_t i = 0; i < character.size(); ++i)
    symbols.push_back({at + i, 1, vocabulary().byte_id(static_cast<unsigned char>(character[i]))});
  return true;
}

std::vector<Symbol> BpeTokenizer::symbols_of(std::string_view word) const {
  std::vector<Symbol> symbols;
  Symbol unknown_run;  // waits for the next character with a piece; n_bytes 0: none
  const auto end_run = [&] {
    if (unknown_run.n_bytes > 0) symbols.push_back(unknown_run);
    unknown_run.n_bytes = 0;
  };
  for (size_t at = 0; at < word.size();) {
    const size_t n_bytes = options_.byte_level ? 1 : utf8_char_bytes(word.substr(at));
    const std::string_view character = word.substr(at, n_bytes);
    const TokenId id = options_.byte_level ? byte_ids_[static_cast<unsigned char>(character[0])]
                                           : model_id(character);
    if (id >= 0) {
      end_run();
      symbols.push_back({at, n_bytes, id});
    } else if (!append_bytes(
                   options_.byte_level ? byte_level_spelling(character) : std::string(character),
                   at, symbols)) {
      if (!options_.fuse_unknown) end_run();
      if (unknown_run.n_bytes == 0) unknown_run = {at, 0, unknown(), true};
      if (unknown() >= 0 || !options_.joins_over_unknown) unknown_run.n_bytes += n_bytes;
    }
    at += n_bytes;
  }
  end_run();
  return symbols;
}

std::vector<Symbol> BpeTokenizer::merged_symbols(std::string_view word) const {
  std::vector<Symbol> symbols = symbols_of(word);
  merge_symbols(symbols, [&](const Symbol& left, const Symbol& right) -> std::optional<Merge> {
    if (left.id < 0 || right.id < 0) return std::nullopt;
    const auto found = merges_.find(pair_key(left.id, right.id));
    if (found == merges_.end()) return std::nullopt;
    return found->second;
  });
  return symbols;
}

void BpeTokenizer::encode_word(std::string_view word, std::vector<TokenId>& ids) const {
  if (options_.ignore_merges && word.size() <= vocabulary().longest_bytes()) {
    const TokenId id =
        model_id(options_.byte_level ? byte_level_spelling(word) : std::string(word));
    if (id >= 0 && vocabulary()[id].kind != PieceKind::Control) {
      ids.push_back(id);
      return;
    }
  }
  bool after_unknown = false;
  const auto append = [&](const std::vector<Symbol>& symbols) {
    for (const Symbol& symbol : symbols) {
      const bool is_unknown = symbol.stands_for_unknown && symbol.id == unknown();
      const bool joins = is_unknown && after_unknown && options_.fuse_unknown && can_cut_;
      if (symbol.id >= 0 && !joins) ids.push_back(symbol.id);
      after_unknown = is_unknown;
    }
  };
  if (!can_cut_) return append(merged_symbols(word));
  for (const std::string_view stretch : boundaries_.cut(word)) append(merged_symbols(stretch));
}

namespace {

std::string stripped(std::string text, const DecodeStep& step) {
  for (size_t i = 0; i < step.n_left && text.starts_with(step.from); ++i)
    text.erase(0, step.from.size());
  for (size_t i = 0; i < step.n_right && text.ends_with(step.from); ++i)
    text.resize(text.size() - step.from.size());
  return text;
}

}  // namespace

std::string BpeTokenizer::plain_bytes(const Piece& piece) const {
  std::string text = piece.text;
  for (const DecodeStep& step : options_.decoder) {
    switch (step.kind) {
      case DecodeStep::Kind::Replace:
        text = replace_all(text, step.from, step.to);
        break;
      case DecodeStep::Kind::ByteFallback:
        if (const int byte = byte_of_piece(text); byte >= 0) text = static_cast<char>(byte);
        break;
      case DecodeStep::Kind::ByteLevel:
        // What a user defined stands for itself.
        if (piece.kind != PieceKind::UserDefined) text = byte_level_bytes(text);
        break;
      case DecodeStep::Kind::Strip:
        text = stripped(std::move(text), step);
        break;
    }
  }
  return options_.blank_between ? " " + text : text;
}

}  // namespace minfer
