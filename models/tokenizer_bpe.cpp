#include "models/tokenizer_bpe.h"

#include "kernels/base/error.h"
#include "kernels/base/utf8.h"
#include "models/tokenizer_byte_level.h"

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

}  // namespace

BpeTokenizer::BpeTokenizer(TokenizerSpec spec, BpeOptions options,
                           const std::vector<std::pair<std::string, std::string>>& merges)
    : VocabularyTokenizer(std::move(spec)), options_(std::move(options)) {
  if (!options_.byte_level) boundaries_ = Boundaries(vocabulary());
  for (int byte = 0; byte < 256; ++byte) {
    const std::string spelled = byte_level_spelling(std::string(1, static_cast<char>(byte)));
    byte_ids_[static_cast<size_t>(byte)] = options_.byte_level ? vocabulary().find(spelled) : -1;
  }
  merges_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left_text, right_text] = merges[rank];
    const auto id_of = [&](const std::string& text) {
      const TokenId id = vocabulary().find(text);
      MINFER_REQUIRE(Input, id >= 0, "merge ", rank, ": \"", shortened(text),
                     "\" is not in the vocabulary");
      return id;
    };
    const TokenId left = id_of(left_text), right = id_of(right_text);
    merges_.try_emplace(pair_key(left, right),
                        Merge{static_cast<double>(rank), id_of(left_text + right_text)});
  }
}

void BpeTokenizer::encode_text(std::string_view text, bool at_start,
                               std::vector<TokenId>& ids) const {
  if (!options_.byte_level) {
    const std::string whole = normalized(with_valid_utf8(text), options_.normalizer, at_start);
    for (const std::string_view word : options_.splitter.split(whole)) encode_word(word, ids);
    return;
  }
  // Bytes that are no character are a word of their own.
  while (!text.empty()) {
    const size_t n_bytes = uniform_bytes(text);
    const std::string_view stretch = text.substr(0, n_bytes);
    if (utf8_char_bytes(stretch) > 0) {
      const std::string whole = normalized(std::string(stretch), options_.normalizer, at_start);
      for (const std::string_view word : options_.splitter.split(whole)) encode_word(word, ids);
    } else {
      encode_word(stretch, ids);
    }
    text.remove_prefix(n_bytes);
    at_start = false;
  }
}

std::vector<Symbol> BpeTokenizer::symbols_of(std::string_view word) const {
  std::vector<Symbol> symbols;
  for (size_t at = 0; at < word.size();) {
    if (options_.byte_level) {
      symbols.push_back({at, 1, byte_ids_[static_cast<unsigned char>(word[at])]});
      ++at;
      continue;
    }
    const std::string_view character = word.substr(at, utf8_char_bytes(word.substr(at)));
    const TokenId id = vocabulary().find(character);
    bool spelled = id < 0 && options_.byte_fallback;
    for (const char byte : character)
      spelled = spelled && vocabulary().byte_id(static_cast<unsigned char>(byte)) >= 0;
    if (spelled) {
      for (size_t i = 0; i < character.size(); ++i)
        symbols.push_back(
            {at + i, 1, vocabulary().byte_id(static_cast<unsigned char>(character[i]))});
    } else {
      symbols.push_back({at, character.size(), id});
    }
    at += character.size();
  }
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
    const TokenId id = vocabulary().find_mergeable(options_.byte_level ? byte_level_spelling(word)
                                                                       : std::string(word));
    if (id >= 0) {
      ids.push_back(id);
      return;
    }
  }
  bool after_unknown = false;
  const auto append = [&](const std::vector<Symbol>& symbols) {
    for (const Symbol& symbol : symbols) {
      if (symbol.id >= 0)
        ids.push_back(symbol.id);
      else if (unknown() >= 0 && !(after_unknown && options_.fuse_unknown))
        ids.push_back(unknown());
      after_unknown = symbol.id < 0;
    }
  };
  if (options_.byte_level) return append(merged_symbols(word));
  for (const std::string_view stretch : boundaries_.cut(word)) append(merged_symbols(stretch));
}

std::string BpeTokenizer::plain_bytes(const Piece& piece) const {
  if (piece.kind == PieceKind::UserDefined) return piece.text;
  return options_.byte_level ? byte_level_bytes(piece.text) : replace_all(piece.text, kBlank, " ");
}

}  // namespace minfer
