#pragma once

#include <string>
#include <vector>

#include "models/tokenizer/tokenizer.h"

namespace minfer::test {

// A tokenizer with BOS and EOS and nothing else: all that a chat template sees of one.
class SpecialTokensTokenizer : public Tokenizer {
 public:
  SpecialTokensTokenizer(std::string bos, std::string eos)
      : pieces_{std::move(bos), std::move(eos)} {
    bos_ = pieces_[0].empty() ? -1 : 0;
    eos_ = pieces_[1].empty() ? -1 : 1;
    n_tokens_ = 2;
  }
  std::vector<TokenId> encode(std::span<const TextPart>, bool) const override { return {}; }
  std::string token_bytes(TokenId id, bool) const override { return piece(id); }
  std::string piece(TokenId id) const override { return pieces_[static_cast<size_t>(id)]; }
  bool strips_leading_space() const override { return false; }
  TokenId find(std::string_view) const override { return -1; }
  Metadata to_gguf(int64_t) const override { return {}; }

 private:
  std::vector<std::string> pieces_;
};

inline std::string joined(const std::vector<TextPart>& parts) {
  std::string text;
  for (const TextPart& part : parts) text += part.text;
  return text;
}

}  // namespace minfer::test
