#include "models/tokenizer_characters.h"

#include <algorithm>

#include "kernels/base/utf8.h"
#include "models/tokenizer_regex.h"

namespace minfer {
namespace {

// Bytes of the character at the end of `text`, or 0 where there is none.
size_t last_char_bytes(std::string_view text) {
  for (size_t n = 1; n <= std::min<size_t>(4, text.size()); ++n)
    if (utf8_char_bytes(text.substr(text.size() - n)) == n) return n;
  return 0;
}

bool is_word(std::string_view character) {
  static const Regex kWord(R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}])");
  bool found = false;
  StepBudget budget(character.size());
  kWord.for_each_match(character, budget, [&](size_t, size_t) { found = true; });
  return found;
}

}  // namespace

char32_t code_point_of(std::string_view character) {
  const size_t n_bytes = character.size();
  char32_t code = static_cast<unsigned char>(character[0]);
  if (n_bytes > 1) code &= 0x3fu >> (n_bytes - 1);
  for (size_t i = 1; i < n_bytes; ++i)
    code = code << 6 | (static_cast<unsigned char>(character[i]) & 0x3fu);
  return code;
}

std::string_view without_leading_white_space(std::string_view text) {
  while (!text.empty()) {
    const size_t n = utf8_char_bytes(text);
    if (n == 0 || !is_white_space(code_point_of(text.substr(0, n)))) break;
    text.remove_prefix(n);
  }
  return text;
}

std::string_view without_trailing_white_space(std::string_view text) {
  while (!text.empty()) {
    const size_t n = last_char_bytes(text);
    if (n == 0 || !is_white_space(code_point_of(text.substr(text.size() - n)))) break;
    text.remove_suffix(n);
  }
  return text;
}

bool starts_with_word(std::string_view text) {
  const size_t n = utf8_char_bytes(text);
  return n > 0 && is_word(text.substr(0, n));
}

bool ends_with_word(std::string_view text) {
  const size_t n = last_char_bytes(text);
  return n > 0 && is_word(text.substr(text.size() - n));
}

}  // namespace minfer
