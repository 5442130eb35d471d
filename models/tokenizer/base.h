#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizer/added.h"
#include "models/tokenizer/tokenizer.h"
#include "models/tokenizer/vocabulary.h"

namespace minfer {

// What a tokenizer file says besides how text is cut and merged.
struct TokenizerSpec {
  std::string kind;
  std::vector<Piece> pieces;
  TokenId bos = -1, eos = -1, unknown = -1;  // -1: none
  bool adds_bos = false;
  std::vector<TokenId> end_ids;  // besides eos and the end-of-turn tokens known by name
  std::string chat_template;
  std::vector<std::string> warnings, notes;
  // Tokens that are found in the text before it is encoded, as the file lists them.
  std::vector<AddedToken> added;
  // Whether control pieces, and user-defined pieces from first_found_user_defined up, are found
  // even if `added` does not list them. The encoder itself finds lower user-defined pieces.
  bool finds_unlisted = true;
  // Where SentencePiece's dummy prefix goes; the names are tokenizer_config.json's. With `legacy`,
  // all text between added tokens gets one. Without it, only the start of the whole text gets one,
  // and only with add_prefix_space.
  bool legacy = true, add_prefix_space = true;
  TokenId first_found_user_defined = 0;
};

// The context of a text that is encoded.
struct TextPlace {
  bool at_start = true;       // nothing is in front of the text
  bool parse_special = true;  // the text may hold control tokens
};

// What all formats share: it finds the added tokens first; the derived class encodes the text
// between them.
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

  // Appends the tokens of a text. The only added tokens in it are those that are found in
  // normalized text.
  virtual void encode_text(std::string_view text, TextPlace place,
                           std::vector<TokenId>& ids) const = 0;
  // The bytes of a piece that is no control token.
  virtual std::string plain_bytes(const Piece& piece) const = 0;

  // The keys of to_gguf() that every vocabulary has.
  Metadata gguf_vocabulary(int64_t vocab_size) const;
  std::vector<double> scores() const;  // of the pieces
  // All keys of to_gguf() for a SentencePiece vocabulary, whose pieces merge by their scores.
  Metadata gguf_sentencepiece(int64_t vocab_size, const std::vector<double>& scores,
                              bool add_space_prefix) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }
  TokenId unknown() const { return unknown_; }
  const std::vector<AddedToken>& added() const { return added_; }

 private:
  bool is_unknown(TokenId id) const;

  Vocabulary vocabulary_;
  TokenId unknown_;
  std::vector<AddedToken> added_;
  // The added tokens that are found in the text as it is: all, and all but the control tokens.
  AddedTokens all_, user_defined_;
  // all_ and the control tokens that are found in normalized text. It is used if only some parts of
  // a text may hold control tokens, because normalizing does not keep the parts apart.
  AddedTokens all_control_;
};

}  // namespace minfer
