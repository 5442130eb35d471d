#include "engine/white_space.h"

#include <array>

namespace minfer {

size_t space_bytes(std::string_view text) {
  if (text.empty()) return 0;
  const char c = text.front();
  if (c == ' ' || (c >= '\t' && c <= '\r') || (c >= '\x1c' && c <= '\x1f')) return 1;
  // Next line; the no-break, ogham and typographic spaces; line and paragraph separators; the
  // narrow no-break, mathematical and ideographic spaces.
  static constexpr std::array<std::string_view, 19> kWide = {
      "\u0085", "\u00a0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003",
      "\u2004", "\u2005", "\u2006", "\u2007", "\u2008", "\u2009", "\u200a",
      "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"};
  for (const std::string_view wide : kWide) {
    if (text.starts_with(wide)) return wide.size();
  }
  return 0;
}

std::string_view without_trailing_space(std::string_view text) {
  size_t end = 0;
  // Forward, because a continuation byte does not say whose it is.
  for (size_t i = 0; i < text.size();) {
    const size_t space = space_bytes(text.substr(i));
    i += space > 0 ? space : 1;
    if (space == 0) end = i;
  }
  return text.substr(0, end);
}

std::string_view trimmed(std::string_view text) {
  while (const size_t n = space_bytes(text)) text.remove_prefix(n);
  return without_trailing_space(text);
}

}  // namespace minfer
