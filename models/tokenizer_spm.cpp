#include "models/tokenizer_spm.h"

#include "kernels/base/utf8.h"
#include "models/tokenizer_merge.h"
#include "models/tokenizer_normalize.h"

namespace minfer {

SpmTokenizer::SpmTokenizer(TokenizerSpec spec, bool add_space_prefix)
    : VocabularyTokenizer(std::move(spec)), add_space_prefix_(add_space_prefix) {}

void SpmTokenizer::encode_text(std::string_view text, bool /*at_start*/,
                               std::vector<TokenId>& ids) const {
  std::string word = replace_all(with_valid_utf8(text), " ", kBlank);
  if (add_space_prefix_) word.insert(0, kBlank);
  const std::string_view view = word;
  const auto text_of = [&](const Symbol& s) { return view.substr(s.begin, s.n_bytes); };

  std::vector<Symbol> symbols;
  for (size_t at = 0; at < view.size();) {
    const size_t n_bytes = utf8_char_bytes(view.substr(at));
    symbols.push_back({at, n_bytes, vocabulary().find_mergeable(view.substr(at, n_bytes))});
    at += n_bytes;
  }
  merge_symbols(symbols, [&](const Symbol& left, const Symbol& right) -> std::optional<Merge> {
    const size_t n_bytes = left.n_bytes + right.n_bytes;
    if (n_bytes > vocabulary().longest_bytes()) return std::nullopt;
    const TokenId id = vocabulary().find_mergeable(view.substr(left.begin, n_bytes));
    if (id < 0) return std::nullopt;
    return Merge{-vocabulary()[id].score, id};
  });

  bool after_unknown = false;  // a run of what the vocabulary cannot spell is one unknown token
  for (const Symbol& symbol : symbols) {
    bool is_unknown = false;
    if (symbol.id >= 0) {
      ids.push_back(symbol.id);
    } else if (vocabulary().spells_bytes()) {
      for (const char byte : text_of(symbol))
        ids.push_back(vocabulary().byte_id(static_cast<unsigned char>(byte)));
    } else {
      is_unknown = true;
      if (!after_unknown && unknown() >= 0) ids.push_back(unknown());
    }
    after_unknown = is_unknown;
  }
}

std::string SpmTokenizer::plain_bytes(const Piece& piece) const {
  return replace_all(piece.text, kBlank, " ");
}

}  // namespace minfer
