#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace minfer {

// Bytes of the well-formed UTF-8 character at the start of `text` (1 to 4), or 0 where there is
// none: empty, a stray or missing continuation byte, an overlong form, a surrogate, past U+10FFFF.
// Source: Unicode 15, table 3-7.
size_t utf8_char_bytes(std::string_view text);

// The code point of the well-formed character at the start of `text`.
inline char32_t utf8_code(std::string_view text) {
  const auto byte = [&](size_t i) -> char32_t { return static_cast<unsigned char>(text[i]); };
  const char32_t lead = byte(0);
  if (lead < 0x80) return lead;
  char32_t code = lead < 0xe0 ? lead & 0x1f : lead < 0xf0 ? lead & 0x0f : lead & 0x07;
  for (size_t i = 1, n = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4; i < n; ++i)
    code = code << 6 | (byte(i) & 0x3f);
  return code;
}

inline void append_utf8(char32_t code, std::string& out) {
  const int n_more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  constexpr char32_t kLeadMarks[] = {0, 0xc0, 0xe0, 0xf0};
  out += static_cast<char>(kLeadMarks[n_more] | code >> (6 * n_more));
  for (int i = n_more - 1; i >= 0; --i) out += static_cast<char>(0x80 | (code >> (6 * i) & 0x3f));
}

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
