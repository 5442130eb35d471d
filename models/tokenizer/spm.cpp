#include "models/tokenizer/spm.h"

#include "kernels/base/utf8.h"
#include "models/tokenizer/normalize.h"

namespace minfer {

SpmTokenizer::SpmTokenizer(TokenizerSpec spec, bool add_space_prefix)
    : VocabularyTokenizer(std::move(spec)),
      boundaries_(vocabulary()),
      add_space_prefix_(add_space_prefix) {}

std::vector<Symbol> SpmTokenizer::merged_symbols(std::string_view word) const {
  std::vector<Symbol> symbols;
  for (size_t at = 0; at < word.size();) {
    const size_t n_bytes = utf8_char_bytes(word.substr(at));
    symbols.push_back({at, n_bytes, vocabulary().find_mergeable(word.substr(at, n_bytes))});
    at += n_bytes;
  }
  merge_symbols(symbols, [&](const Symbol& left, const Symbol& right) -> std::optional<Merge> {
    const size_t n_bytes = left.n_bytes + right.n_bytes;
    if (n_bytes > vocabulary().longest_bytes()) return std::nullopt;
    const TokenId id = vocabulary().find_mergeable(word.substr(left.begin, n_bytes));
    if (id < 0) return std::nullopt;
    return Merge{-vocabulary()[id].score, id};
  });
  return symbols;
}

void SpmTokenizer::encode_text(std::string_view text, TextPlace /*place*/,
                               std::vector<TokenId>& ids) const {
  std::string whole = replace_all(with_valid_utf8(text), " ", kBlank);
  if (add_space_prefix_) whole.insert(0, kBlank);
  bool after_unknown = false;  // a run of what the vocabulary cannot spell is one unknown token
  for (const std::string_view word : boundaries_.cut(whole)) {
    throw_if_cancelled();
    for (const Symbol& symbol : merged_symbols(word)) {
      const bool is_unknown = symbol.id < 0 && !vocabulary().spells_bytes();
      if (symbol.id >= 0) {
        ids.push_back(symbol.id);
      } else if (!is_unknown) {
        for (const char byte : word.substr(symbol.begin, symbol.n_bytes))
          ids.push_back(vocabulary().byte_id(static_cast<unsigned char>(byte)));
      } else if (!after_unknown && unknown() >= 0) {
        ids.push_back(unknown());
      }
      after_unknown = is_unknown;
    }
  }
}

std::string SpmTokenizer::plain_bytes(const Piece& piece) const {
  return sentencepiece_bytes(piece);
}

}  // namespace minfer
