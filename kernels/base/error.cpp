#include "kernels/base/error.h"

#include <algorithm>

#include "kernels/base/utf8.h"

namespace minfer {
namespace {

// Characters that move the cursor, end a line or turn the direction of what follows: C0 and C1
// controls, line and paragraph separators, bidirectional marks and isolates.
bool is_unsafe(std::string_view character) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 1) return byte(0) < 0x20 || byte(0) == 0x7f;
  if (character.size() == 2) {
    return (byte(0) == 0xc2 && byte(1) < 0xa0) || character == "\u061c";
  }
  if (character.size() != 3 || byte(0) != 0xe2) return false;
  const bool is_of_2000 = byte(1) == 0x80 &&                       // U+200E, U+200F and
                          (byte(2) == 0x8e || byte(2) == 0x8f ||   // U+2028 to
                           (byte(2) >= 0xa8 && byte(2) <= 0xae));  // U+202E
  return is_of_2000 || (byte(1) == 0x81 && byte(2) >= 0xa6 && byte(2) <= 0xa9);
}

}  // namespace

std::string shortened(std::string_view text, size_t max_bytes) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  size_t i = 0;
  while (i < text.size() && out.size() < max_bytes) {
    const size_t n = utf8_char_bytes(text.substr(i));
    if (n > 0 && !is_unsafe(text.substr(i, n))) {
      out += text.substr(i, n);
      i += n;
      continue;
    }
    for (const size_t end = i + std::max<size_t>(n, 1); i < end; ++i) {
      const auto byte = static_cast<unsigned char>(text[i]);
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  if (i < text.size()) out += "...";
  return out;
}

}  // namespace minfer
