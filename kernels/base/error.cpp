#include "kernels/base/error.h"

#include "kernels/base/utf8.h"

namespace minfer {

std::string shortened(std::string_view text, size_t max_bytes) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  size_t i = 0;
  while (i < text.size() && out.size() < max_bytes) {
    const size_t n = utf8_char_bytes(text.substr(i));
    const auto byte = static_cast<unsigned char>(text[i]);
    if (n == 0 || byte < 0x20 || byte == 0x7f) {  // not a character, or one that moves the cursor
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
      ++i;
    } else {
      out += text.substr(i, n);
      i += n;
    }
  }
  if (i < text.size()) out += "...";
  return out;
}

}  // namespace minfer
