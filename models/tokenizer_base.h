#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizer.h"
#include "models/tokenizer_vocabulary.h"

namespace minfer {

// What a tokenizer file says besides how text is cut and merged.
struct TokenizerSpec {
  std::string kind;
  std::vector<Piece> pieces;
  TokenId bos = -1, eos = -1, unknown = -1;  // -1: none
  bool adds_bos = false;
  std::vector<TokenId> end_ids;  // besides eos and the end-of-turn tokens known by name
  std::string chat_template;
  std::vector<std::string> warnings;
  // User-defined pieces from this id up are found in the text before it is encoded; the ones below
  // by the encoder itself.
  TokenId first_found_user_defined = 0;
  // Special tokens that take the white space on that side with them.
  std::vector<TokenId> left_stripping, right_stripping;
};

// The part that all formats share: special tokens are found first, what lies between is encoded by
// the algorithm of the vocabulary.
class VocabularyTokenizer : public Tokenizer {
 public:
  using Tokenizer::encode;
  std::vector<TokenId> encode(std::span<const TextPart> parts, bool add_bos) const override;
  std::string token_bytes(TokenId id, bool special) const override;
  std::string piece(TokenId id) const override;
  TokenId find(std::string_view text) const override { return vocabulary_.find(text); }

 protected:
  // Throws Input where a special id is outside the vocabulary.
  explicit VocabularyTokenizer(TokenizerSpec spec);

  // Appends the tokens of a text without special tokens. `at_start`: nothing is in front of it.
  virtual void encode_text(std::string_view text, bool at_start,
                           std::vector<TokenId>& ids) const = 0;
  // The bytes of an ordinary piece.
  virtual std::string plain_bytes(const Piece& piece) const = 0;

  // What to_gguf says of every vocabulary.
  Metadata gguf_vocabulary(int64_t vocab_size) const;
  std::vector<double> scores() const;  // of the pieces
  // The whole of to_gguf for a SentencePiece vocabulary: pieces merge by their scores.
  Metadata gguf_sentencepiece(int64_t vocab_size, const std::vector<double>& scores,
                              bool add_space_prefix) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }
  TokenId unknown() const { return unknown_; }

 private:
  struct Fragment {
    TokenId id;  // -1: `text` it is
    std::string text;
  };
  bool is_unknown(TokenId id) const;
  std::vector<Fragment> fragments_of(std::span<const TextPart> parts) const;

  Vocabulary vocabulary_;
  TokenId unknown_;
  StringSet user_defined_, special_;  // special_ has the control tokens too
  std::vector<TokenId> left_stripping_, right_stripping_;
};

}  // namespace minfer
