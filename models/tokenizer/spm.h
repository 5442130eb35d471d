#pragma once

#include "models/tokenizer/base.h"
#include "models/tokenizer/boundaries.h"
#include "models/tokenizer/merge.h"

namespace minfer {

// SentencePiece's BPE with scores: among all neighbours that form a piece, those with the highest
// score merge first. What is no piece in the end becomes byte pieces or the unknown token.
class SpmTokenizer : public VocabularyTokenizer {
 public:
  // add_space_prefix: a blank is added to the start of a text and after each added token.
  SpmTokenizer(TokenizerSpec spec, bool add_space_prefix);

  bool strips_leading_space() const override { return add_space_prefix_; }
  Metadata to_gguf(int64_t vocab_size) const override {
    return gguf_sentencepiece(vocab_size, scores(), add_space_prefix_);
  }

 protected:
  void encode_text(std::string_view text, TextPlace place,
                   std::vector<TokenId>& ids) const override;
  std::string plain_bytes(const Piece& piece) const override;

 private:
  std::vector<Symbol> merged_symbols(std::string_view word) const;

  Boundaries boundaries_;
  bool add_space_prefix_;
};

}  // namespace minfer
