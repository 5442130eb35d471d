#include "models/tokenizer/byte_level.h"

#include <array>
#include <cstddef>

#include "kernels/base/utf8.h"

namespace minfer {
namespace {

bool is_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
}

// The code points are U+0021 to U+0143: one or two bytes of UTF-8.
constexpr size_t kEndCodePoint = 0x144;

struct ByteSpelling {
  std::array<std::string, 256> chars;    // by byte
  std::array<int, kEndCodePoint> bytes;  // by code point; -1: spells none

  ByteSpelling() {
    bytes.fill(-1);
    int next_other = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const int code_point = is_itself(byte) ? byte : next_other++;
      bytes[static_cast<size_t>(code_point)] = byte;
      std::string& out = chars[static_cast<size_t>(byte)];
      if (code_point >= 0x80) out += static_cast<char>(0xc0 | code_point >> 6);
      out += static_cast<char>(code_point < 0x80 ? code_point : 0x80 | (code_point & 0x3f));
    }
  }
};

const ByteSpelling& spelling() {
  static const ByteSpelling kSpelling;
  return kSpelling;
}

}  // namespace

std::string byte_level_spelling(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += spelling().chars[static_cast<unsigned char>(byte)];
  return text;
}

std::string byte_level_bytes(std::string_view piece) {
  std::string bytes;
  for (std::string_view rest = piece; !rest.empty();) {
    const size_t n = utf8_char_bytes(rest);
    const auto lead = static_cast<unsigned char>(rest[0]);
    size_t code_point = kEndCodePoint;
    if (n == 1) code_point = lead;
    if (n == 2) code_point = (lead & 0x1fu) << 6 | (static_cast<unsigned char>(rest[1]) & 0x3fu);
    const int byte = code_point < kEndCodePoint ? spelling().bytes[code_point] : -1;
    if (byte < 0) return std::string(piece);
    bytes += static_cast<char>(byte);
    rest.remove_prefix(n);
  }
  return bytes;
}

}  // namespace minfer
