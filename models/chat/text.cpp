#include "models/chat/text.h"

#include <algorithm>
#include <iterator>

#include "kernels/base/utf8.h"

namespace minfer::jinja {
namespace {

struct CodeRange {
  char32_t first, last;
};
// The letters first, first + step, .. last become themselves plus `delta`.
struct CaseRange {
  char32_t first, last;
  int step, delta;
};
struct SpecialCase {
  char32_t code;
  const char* text;
};
#include "models/chat/unicode_data.inc"

template <size_t n>
bool contains(const CodeRange (&ranges)[n], char32_t code) {
  const auto range = std::ranges::lower_bound(ranges, code, {}, &CodeRange::last);
  return range != std::end(ranges) && range->first <= code;
}

template <size_t n, size_t m>
std::string mapped(const CaseRange (&ranges)[n], const SpecialCase (&special)[m], char32_t code) {
  const auto odd = std::ranges::lower_bound(special, code, {}, &SpecialCase::code);
  if (odd != std::end(special) && odd->code == code) return odd->text;
  std::string out;
  const auto range = std::ranges::lower_bound(ranges, code, {}, &CaseRange::last);
  const bool inside = range != std::end(ranges) && range->first <= code &&
                      (code - range->first) % static_cast<char32_t>(range->step) == 0;
  if (inside) code = static_cast<char32_t>(static_cast<int64_t>(code) + range->delta);
  append_utf8(code, out);
  return out;
}

}  // namespace

bool Text::own_at(size_t at) const {
  const auto behind = std::ranges::upper_bound(flips, static_cast<uint32_t>(at));
  return starts_own == ((behind - flips.begin()) % 2 == 0);
}

TextBuilder& TextBuilder::add(std::string_view bytes, bool own) {
  if (bytes.empty()) return *this;
  MINFER_REQUIRE(Input, bytes.size() <= limit_ && size() + bytes.size() <= limit_,
                 "the template writes more than ", limit_ >> 20, " MB");
  meter_->step();
  meter_->scan(bytes.size());
  meter_->require_room(size() + bytes.size());
  if (size() == 0)
    text_.starts_own = own;
  else if (own != ends_own_)
    text_.flips.push_back(static_cast<uint32_t>(size()));
  ends_own_ = own;
  text_.bytes += bytes;
  return *this;
}

TextBuilder& TextBuilder::add(const Text& text, size_t begin, size_t end) {
  if (begin >= end) return *this;
  const std::string_view bytes = text.bytes;
  auto flip = std::ranges::upper_bound(text.flips, static_cast<uint32_t>(begin));
  bool own = text.starts_own == ((flip - text.flips.begin()) % 2 == 0);
  for (; flip != text.flips.end() && *flip < end; ++flip) {
    add(bytes.substr(begin, *flip - begin), own);
    begin = *flip;
    own = !own;
  }
  return add(bytes.substr(begin, end - begin), own);
}

char32_t code_point_at(std::string_view text, size_t at, size_t& n_bytes) {
  const auto lead = static_cast<unsigned char>(text[at]);
  n_bytes = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  return utf8_code(text.substr(at));
}

size_t count_code_points(std::string_view text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return (c & '\xc0') != '\x80'; }));
}

bool is_space(char32_t code) {
  if (code < 0x80)
    return code == ' ' || (code >= 0x09 && code <= 0x0d) || (code >= 0x1c && code <= 0x1f);
  return code == 0x85 || code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) ||
         code == 0x2028 || code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

bool is_printable(char32_t code) {
  if (code < 0x7f) return code >= 0x20;
  return contains(kPrintable, code);
}

size_t skip_space(std::string_view text, size_t at) {
  for (size_t n = 0; at < text.size() && is_space(code_point_at(text, at, n)); at += n) {
  }
  return at;
}

size_t skip_space_back(std::string_view text, size_t end) {
  while (end > 0) {
    size_t at = end - 1, n = 0;
    while (at > 0 && (text[at] & '\xc0') == '\x80') --at;
    if (!is_space(code_point_at(text, at, n))) break;
    end = at;
  }
  return end;
}

std::string in_case(char32_t code, Case which) {
  if (code < 0x80) {
    const bool lower = code >= 'a' && code <= 'z', upper = code >= 'A' && code <= 'Z';
    const bool changes = which == Case::Lower ? upper : lower;
    return {static_cast<char>(changes ? code ^ 0x20 : code)};
  }
  switch (which) {
    case Case::Upper:
      return mapped(kUpper, kSpecialUpper, code);
    case Case::Lower:
      // Its form depends on the letters around it.
      MINFER_REQUIRE(Input, code != 0x3a3, "lower case of a capital sigma is not supported");
      return mapped(kLower, kSpecialLower, code);
    default:
      return mapped(kTitle, kSpecialTitle, code);
  }
}

}  // namespace minfer::jinja
