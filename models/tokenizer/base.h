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
  // Whether control pieces and user-defined pieces from first_found_user_defined up are found too,
  // listed or not. User-defined pieces below it are found by the encoder itself.
  bool finds_unlisted = true;
  // Of a SentencePiece vocabulary with its dummy prefix, as tokenizer_config.json names them:
  // with `legacy` every stretch between added tokens gets one, else the start of the text alone,
  // and that one only with add_prefix_space.
  bool legacy = true, add_prefix_space = true;
  TokenId first_found_user_defined = 0;
};

// What lies around a text that is to be encoded.
struct TextPlace {
  bool at_start = true;       // nothing is in front of it
  bool parse_special = true;  // control tokens may be in it
};

// The part that all formats share: added tokens are found first, what lies between is encoded by
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

  // Appends the tokens of a text without added tokens, those excepted that are found in normalized
  // text.
  virtual void encode_text(std::string_view text, TextPlace place,
                           std::vector<TokenId>& ids) const = 0;
  // The bytes of a piece that is no control token.
  virtual std::string plain_bytes(const Piece& piece) const = 0;

  // What to_gguf says of every vocabulary.
  Metadata gguf_vocabulary(int64_t vocab_size) const;
  std::vector<double> scores() const;  // of the pieces
  // The whole of to_gguf for a SentencePiece vocabulary: pieces merge by their scores.
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
  // Those that are found in the text as it is: all of them, and those that are no control tokens.
  AddedTokens all_, user_defined_;
  // all_ and the control tokens that are found in normalized text. It serves where only parts of a
  // text may hold control tokens: normalizing does not keep the parts apart.
  AddedTokens all_control_;
};

}  // namespace minfer
