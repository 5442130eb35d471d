#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <unordered_map>

#include "loaders/small_files.h"
#include "models/tokenizer/base.h"

namespace minfer {

// The most ids that the numbering of a file may skip.
inline constexpr int64_t kMaxHoles = 4096;

// Finds the pieces of a tokenizer by text.
class PieceIndex {
 public:
  explicit PieceIndex(const TokenizerSpec& spec);
  TokenId find(const std::string& text) const;  // -1: none
  void add(const std::string& text, TokenId id) { ids_[text] = id; }
  size_t size() const { return ids_.size(); }
  // The index in TokenizerSpec::added of each token that it lists.
  std::unordered_map<TokenId, size_t>& listed() { return listed_; }

 private:
  std::unordered_map<std::string, TokenId> ids_;
  std::unordered_map<TokenId, size_t> listed_;
};

// Gives `id` this text and, unless it is an unknown or byte piece, this kind. Adds pieces if the id
// is past their end. Throws Input if the id has another text.
void set_piece(TokenizerSpec& spec, int64_t id, const std::string& text, PieceKind kind);

// Reads an added token of a tokenizer.json or a tokenizer_config.json, except its id.
AddedToken read_added_token(const nlohmann::json& json);
// Makes the token a piece and lists it in spec.added. If it is listed already, its flags change.
void add_token(TokenizerSpec& spec, PieceIndex& index, AddedToken token);

// Completes `spec` from the files beside the tokenizer of a Hugging Face model:
// tokenizer_config.json, special_tokens_map.json, added_tokens.json, generation_config.json,
// config.json, chat_template.jinja. A missing file changes nothing. docs/tokenizers.md has their
// order and precedence.
void apply_hf_side_files(const SmallFiles& files, PieceIndex& index, TokenizerSpec& spec);

}  // namespace minfer
