#include "tools/id_tokenizer.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/base/math.h"
#include "tools/command_line.h"

namespace minfer {
namespace {

class IdTokenizer final : public Tokenizer {
 public:
  explicit IdTokenizer(int64_t n_tokens) {
    n_tokens_ = n_tokens;
    kind_ = "token ids";
  }
  using Tokenizer::encode;
  std::vector<TokenId> encode(std::span<const TextPart> parts, bool) const override {
    std::string text;
    for (const TextPart& part : parts) text += part.text;
    return parse_token_ids("the prompt", text, n_tokens_);
  }
  std::string token_bytes(TokenId id, bool) const override { return cat(id, ' '); }
  std::string piece(TokenId id) const override { return cat(id); }
  bool strips_leading_space() const override { return false; }
  TokenId find(std::string_view) const override { return -1; }
  Metadata to_gguf(int64_t) const override {
    throw Error(ErrorKind::Input, "the model has no tokenizer");
  }
};

}  // namespace

std::unique_ptr<Tokenizer> make_id_tokenizer(int64_t n_tokens) {
  return std::make_unique<IdTokenizer>(n_tokens);
}

std::vector<TokenId> parse_token_ids(std::string_view what, std::string_view text,
                                     int64_t n_tokens) {
  constexpr std::string_view kBetween = " ,\t\n\r";
  std::vector<TokenId> ids;
  for (size_t begin = text.find_first_not_of(kBetween); begin != std::string_view::npos;
       begin = text.find_first_not_of(kBetween, begin)) {
    const size_t end = std::min(text.find_first_of(kBetween, begin), text.size());
    const std::string_view id = text.substr(begin, end - begin);
    ids.push_back(narrow<TokenId>(parse_integer(what, id, 0, n_tokens - 1)));
    begin = end;
  }
  return ids;
}

}  // namespace minfer
