#pragma once

#include <string>
#include <vector>

#include "models/tokenizer/tokenizer.h"

namespace minfer::test {

// Pieces may be parts of characters; id 0 begins a text, id 1 ends it.
class ToyTokenizer final : public Tokenizer {
 public:
  explicit ToyTokenizer(std::vector<std::string> pieces) : pieces_(std::move(pieces)) {
    n_tokens_ = std::ssize(pieces_);
    bos_ = 0;
    eos_ = 1;
    end_ids_ = {1};
  }
  std::vector<TokenId> encode(std::span<const TextPart>, bool) const override { return {0}; }
  std::string token_bytes(TokenId id, bool special) const override {
    return id < 2 && !special ? "" : pieces_[size_t(id)];
  }
  std::string piece(TokenId id) const override { return pieces_[size_t(id)]; }
  bool strips_leading_space() const override { return false; }
  TokenId find(std::string_view) const override { return -1; }
  Metadata to_gguf(int64_t) const override { return {}; }

 private:
  std::vector<std::string> pieces_;
};

}  // namespace minfer::test
