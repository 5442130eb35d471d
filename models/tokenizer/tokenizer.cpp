#include "models/tokenizer/tokenizer.h"

#include <algorithm>

#include "kernels/base/cancelled.h"
#include "kernels/base/utf8.h"

namespace minfer {
namespace {

// Bytes at the start of `text` that one U+FFFD stands for: as far as they could have become a
// character.
size_t malformed_bytes(std::string_view text) {
  for (size_t n = std::min<size_t>(3, text.size()); n > 1; --n)
    if (utf8_incomplete_tail(text.substr(0, n)) == n) return n;
  return 1;
}

std::atomic<const std::atomic<bool>*> cancel_flag{nullptr};

}  // namespace

void Tokenizer::cancel_by(const std::atomic<bool>* flag) { cancel_flag.store(flag); }

void Tokenizer::throw_if_cancelled() {
  const std::atomic<bool>* const flag = cancel_flag.load(std::memory_order_relaxed);
  if (flag != nullptr && flag->load(std::memory_order_relaxed)) throw Cancelled();
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  const TextPart part{std::string(text), options.parse_special};
  return encode(std::span(&part, 1), options.add_bos);
}

bool Tokenizer::is_end(TokenId id) const {
  return std::ranges::find(end_ids_, id) != end_ids_.end();
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool special) const {
  std::string text;
  bool at_start = true;
  for (const TokenId id : ids) {
    const std::string bytes = token_bytes(id, special);
    const bool strip = at_start && strips_leading_space() && bytes.starts_with(' ');
    at_start = at_start && bytes.empty();
    text += std::string_view(bytes).substr(strip ? 1 : 0);
  }
  return text;
}

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool at_start, bool special)
    : tokenizer_(tokenizer), at_start_(at_start), special_(special) {}

std::string StreamDecoder::push(TokenId id) {
  const std::string bytes = tokenizer_.token_bytes(id, special_);
  const bool strip = at_start_ && tokenizer_.strips_leading_space() && bytes.starts_with(' ');
  at_start_ = at_start_ && bytes.empty();
  pending_ += std::string_view(bytes).substr(strip ? 1 : 0);

  std::string out;
  std::string_view rest = pending_;
  const size_t held = utf8_incomplete_tail(rest);
  while (rest.size() > held) {
    const size_t n = utf8_char_bytes(rest);
    out += n > 0 ? rest.substr(0, n) : "\ufffd";
    rest.remove_prefix(n > 0 ? n : malformed_bytes(rest));
  }
  pending_ = std::string(rest);
  return out;
}

std::string StreamDecoder::flush() {
  const bool broken = !pending_.empty();
  pending_.clear();
  return broken ? "\ufffd" : "";
}

}  // namespace minfer
