#include "kernels/base/utf8.h"

#include <algorithm>

namespace minfer {
namespace {

struct Lead {
  size_t n_bytes;             // 0: no character starts with this byte
  unsigned char second_low;   // range of the second byte; it alone excludes overlong forms,
  unsigned char second_high;  // surrogates and what lies past U+10FFFF
};

Lead lead_of(unsigned char byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xc2) return {0, 0, 0};
  if (byte < 0xe0) return {2, 0x80, 0xbf};
  if (byte == 0xe0) return {3, 0xa0, 0xbf};
  if (byte == 0xed) return {3, 0x80, 0x9f};
  if (byte < 0xf0) return {3, 0x80, 0xbf};
  if (byte == 0xf0) return {4, 0x90, 0xbf};
  if (byte < 0xf4) return {4, 0x80, 0xbf};
  if (byte == 0xf4) return {4, 0x80, 0x8f};
  return {0, 0, 0};
}

// How many bytes at the start of `text` agree with the character that its first byte announces.
size_t agreeing_bytes(std::string_view text, const Lead& lead) {
  const size_t end = std::min(text.size(), lead.n_bytes);
  for (size_t i = 1; i < end; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool ok =
        i == 1 ? byte >= lead.second_low && byte <= lead.second_high : (byte & 0xc0) == 0x80;
    if (!ok) return i;
  }
  return end;
}

}  // namespace

size_t utf8_char_bytes(std::string_view text) {
  if (text.empty()) return 0;
  const Lead lead = lead_of(static_cast<unsigned char>(text[0]));
  return lead.n_bytes != 0 && agreeing_bytes(text, lead) == lead.n_bytes ? lead.n_bytes : 0;
}

size_t utf8_incomplete_tail(std::string_view text) {
  for (size_t n = 1; n <= 3 && n <= text.size(); ++n) {
    const std::string_view tail = text.substr(text.size() - n);
    const Lead lead = lead_of(static_cast<unsigned char>(tail[0]));
    if (lead.n_bytes > n && agreeing_bytes(tail, lead) == n) return n;
  }
  return 0;
}

}  // namespace minfer
