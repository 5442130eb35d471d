#pragma once

#include <cstddef>
#include <string_view>

namespace minfer {

// Bytes of the well-formed UTF-8 character at the start of `text` (1 to 4), or 0 where there is
// none: empty, a stray or missing continuation byte, an overlong form, a surrogate, past U+10FFFF.
// Source: Unicode 15, table 3-7.
size_t utf8_char_bytes(std::string_view text);

// Bytes at the end of `text` that may be the start of a character whose rest is still to come: 0
// to 3.
size_t utf8_incomplete_tail(std::string_view text);

inline bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t n = utf8_char_bytes(text);
    if (n == 0) return false;
    text.remove_prefix(n);
  }
  return true;
}

}  // namespace minfer
