#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "models/tokenizer/base.h"
#include "models/tokenizer/boundaries.h"
#include "models/tokenizer/merge.h"
#include "models/tokenizer/normalize.h"
#include "models/tokenizer/words.h"

namespace minfer {

// How pieces become text: the decoder of a tokenizer.json, token by token.
struct DecodeStep {
  enum class Kind {
    Replace,       // every `from` by `to`
    ByteFallback,  // "<0x0A>" is that byte
    ByteLevel,     // characters that spell bytes, as GPT-2 does
    Strip,         // removes `from` up to n_left and n_right times from the ends of each token
  };
  Kind kind = Kind::ByteLevel;
  std::string from = {}, to = {};
  size_t n_left = 0, n_right = 0;
};

// How a vocabulary with a list of merges is used.
struct BpeOptions {
  bool byte_level = false;     // pieces spell bytes as GPT-2 does; else characters
  bool byte_fallback = false;  // a character without a piece is spelled in byte pieces
  bool fuse_unknown = false;   // neighbouring characters without a piece are one unknown token
  bool ignore_merges = false;  // a word that is a piece stays whole
  // True: if there is no unknown token, characters without a piece are dropped before merging.
  // False: they stay and keep their neighbours apart.
  bool joins_over_unknown = false;
  bool spelled_words = false;  // words come from the cutter in byte-level spelling
  bool strips_leading_space = false;
  bool blank_between = false;       // no decoder: tokens are joined by blanks
  std::vector<bool> outside_model;  // by id: true for a piece that no merge can make
  std::vector<NormalizeStep> normalizer;
  WordCutter words;
  std::vector<DecodeStep> decoder;
};

// Byte pair encoding with a list of merges; those earlier in the list are applied first.
class BpeTokenizer : public VocabularyTokenizer {
 public:
  // Throws Input if a part or the result of a merge is not a piece.
  BpeTokenizer(TokenizerSpec spec, BpeOptions options,
               const std::vector<std::pair<std::string, std::string>>& merges);

  bool strips_leading_space() const override {
    return options_.strips_leading_space || options_.blank_between;
  }
  Metadata to_gguf(int64_t vocab_size) const override;

 protected:
  void encode_text(std::string_view text, TextPlace place,
                   std::vector<TokenId>& ids) const override;
  std::string plain_bytes(const Piece& piece) const override;
  // Appends the tokens of one word of the pre-tokenizer.
  virtual void encode_word(std::string_view word, std::vector<TokenId>& ids) const;

  bool in_model(TokenId id) const;
  TokenId model_id(std::string_view text) const;  // -1: no piece of the model
  // Appends the byte pieces of a character. False without byte_fallback or if a byte has no piece.
  bool append_bytes(std::string_view character, size_t at, std::vector<Symbol>& symbols) const;

 private:
  std::vector<std::pair<uint64_t, Merge>> merges_in_order() const;
  Metadata gguf_by_scores(int64_t vocab_size) const;
  void encode_valid(std::string text, TextPlace place, std::vector<TokenId>& ids) const;
  void encode_words(std::string_view text, size_t front, std::vector<TokenId>& ids) const;
  std::vector<Symbol> symbols_of(std::string_view word) const;
  std::vector<Symbol> merged_symbols(std::string_view word) const;

  Boundaries boundaries_;
  bool can_cut_ = false;  // whether words may be cut at boundaries_
  BpeOptions options_;
  // The added tokens that are found in normalized text: all, and all but the control tokens.
  AddedTokens normalized_all_, normalized_user_defined_;
  std::array<TokenId, 256> byte_ids_;           // byte-level: the piece of each byte, or -1
  std::unordered_map<uint64_t, Merge> merges_;  // by the ids of both neighbours
};

}  // namespace minfer
