#include "models/tokenizer/characters.h"

#include <algorithm>

#include "kernels/base/utf8.h"
#include "models/tokenizer/unicode_tables.h"

namespace minfer {
namespace {

// Bytes of the character at the end of `text`, or 0 where there is none.
size_t last_char_bytes(std::string_view text) {
  for (size_t n = 1; n <= std::min<size_t>(4, text.size()); ++n)
    if (utf8_char_bytes(text.substr(text.size() - n)) == n) return n;
  return 0;
}

bool is_word(std::string_view character) {
  static const CodeSet kWord = code_points_of("word")->united(CodeSet({{0x200c, 0x200d}}));
  return kWord.contains(utf8_code(character));
}

}  // namespace

std::string_view without_leading_white_space(std::string_view text) {
  while (!text.empty()) {
    const size_t n = utf8_char_bytes(text);
    if (n == 0 || !is_white_space(utf8_code(text))) break;
    text.remove_prefix(n);
  }
  return text;
}

std::string_view without_trailing_white_space(std::string_view text) {
  while (!text.empty()) {
    const size_t n = last_char_bytes(text);
    if (n == 0 || !is_white_space(utf8_code(text.substr(text.size() - n)))) break;
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
