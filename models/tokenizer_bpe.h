#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "models/tokenizer_base.h"
#include "models/tokenizer_boundaries.h"
#include "models/tokenizer_merge.h"
#include "models/tokenizer_normalize.h"
#include "models/tokenizer_split.h"

namespace minfer {

// How a vocabulary with a list of merges is used.
struct BpeOptions {
  bool byte_level = false;     // pieces spell bytes as GPT-2 does; else characters, ▁ for a blank
  bool byte_fallback = false;  // a character without a piece is spelled in byte pieces
  bool fuse_unknown = false;   // neighbours without a piece are one unknown token
  bool ignore_merges = false;  // a word that is a piece stays whole
  bool strips_leading_space = false;
  std::vector<NormalizeStep> normalizer;
  TextSplitter splitter;
};

// Byte pair encoding by a list of merges, the earlier in the list the sooner.
class BpeTokenizer : public VocabularyTokenizer {
 public:
  // Throws Input where a merge names or makes something that is no piece.
  BpeTokenizer(TokenizerSpec spec, BpeOptions options,
               const std::vector<std::pair<std::string, std::string>>& merges);

  bool strips_leading_space() const override { return options_.strips_leading_space; }
  Metadata to_gguf(int64_t vocab_size) const override;

 protected:
  void encode_text(std::string_view text, bool at_start, std::vector<TokenId>& ids) const override;
  std::string plain_bytes(const Piece& piece) const override;

 private:
  std::vector<std::pair<uint64_t, Merge>> merges_in_order() const;
  void encode_word(std::string_view word, std::vector<TokenId>& ids) const;
  std::vector<Symbol> symbols_of(std::string_view word) const;
  std::vector<Symbol> merged_symbols(std::string_view word) const;

  Boundaries boundaries_;  // not byte-level
  BpeOptions options_;
  std::array<TokenId, 256> byte_ids_;           // byte-level: the piece of each byte, or -1
  std::unordered_map<uint64_t, Merge> merges_;  // by the ids of both neighbours
};

}  // namespace minfer
