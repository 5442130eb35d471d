#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <unordered_map>

#include "loaders/small_files.h"
#include "models/tokenizer/base.h"

namespace minfer {

// Ids past the number of texts in a file that its numbering may leave out.
inline constexpr int64_t kMaxHoles = 4096;

// The pieces of a tokenizer by text.
class PieceIndex {
 public:
  explicit PieceIndex(const TokenizerSpec& spec);
  TokenId find(const std::string& text) const;  // -1: none
  void add(const std::string& text, TokenId id) { ids_[text] = id; }
  size_t size() const { return ids_.size(); }
  // Where TokenizerSpec::added lists a token.
  std::unordered_map<TokenId, size_t>& listed() { return listed_; }

 private:
  std::unordered_map<std::string, TokenId> ids_;
  std::unordered_map<TokenId, size_t> listed_;
};

// Gives `id` this text and kind; ids past the end make room. Throws Input where the id belongs to
// another text.
void set_piece(TokenizerSpec& spec, int64_t id, const std::string& text, PieceKind kind);

// All but the id of an added token of a tokenizer.json or a tokenizer_config.json.
AddedToken read_added_token(const nlohmann::json& json);
// Makes it a piece, and one that is found. A token that is listed already gets the flags of this.
void add_token(TokenizerSpec& spec, PieceIndex& index, AddedToken token);

// Completes `spec` by what a Hugging Face model says beside the tokenizer itself:
// tokenizer_config.json, special_tokens_map.json, added_tokens.json, generation_config.json,
// config.json, chat_template.jinja. A file that is not there changes nothing. docs/tokenizers.md
// tells which comes before which.
void apply_hf_side_files(const SmallFiles& files, PieceIndex& index, TokenizerSpec& spec);

}  // namespace minfer
