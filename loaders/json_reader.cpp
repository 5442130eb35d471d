#include "loaders/json_reader.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "kernels/base/error.h"
#include "kernels/base/utf8.h"

namespace minfer {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Whether a number that no double holds is too large for one; else it is too small.
bool is_huge(std::string_view number) {
  const size_t e = std::min(number.find_first_of("eE"), number.size());
  int64_t exponent = 0;
  if (e < number.size()) {
    const std::string_view digits = number.substr(e + (number[e + 1] == '+' ? 2 : 1));
    const auto fault = std::from_chars(digits.data(), digits.data() + digits.size(), exponent).ec;
    if (fault != std::errc()) return digits[0] != '-';
  }
  const std::string_view mantissa = number.substr(0, e);
  const size_t first = mantissa.find_first_of("123456789");
  const size_t point = std::min(mantissa.find('.'), mantissa.size());
  return exponent + static_cast<int64_t>(point) - static_cast<int64_t>(first) > 0;
}

}  // namespace

JsonReader::JsonReader(std::string_view text) : text_(text) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  has_byte_order_mark_ = text.starts_with(kByteOrderMark);
  if (has_byte_order_mark_) at_ = kByteOrderMark.size();
}

void JsonReader::fail_at(size_t at, std::string_view what) const {
  throw Error(ErrorKind::Input, cat("malformed JSON: byte ", at + 1, ": ", what));
}

char JsonReader::peek() {
  at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size());
  if (at_ == text_.size()) return 0;
  if (text_[at_] == '\0') fail("NUL");
  return text_[at_];
}

bool JsonReader::take(char wanted) {
  if (peek() != wanted) return false;
  ++at_;
  return true;
}

void JsonReader::require(char wanted) {
  if (!take(wanted)) fail(cat("expected '", wanted, "'"));
}

void JsonReader::require_end() {
  if (peek() != 0) fail("more text behind the value");
}

bool JsonReader::take_word(std::string_view word) {
  if (!text_.substr(at_).starts_with(word)) return false;
  at_ += word.size();
  return true;
}

JsonReader::Scalar JsonReader::scalar() {
  const char next = peek();
  if (next == '"') return string();
  if (take_word("null")) return nullptr;
  if (take_word("true")) return true;
  if (take_word("false")) return false;
  if (take_word("NaN")) return NotFinite{std::numeric_limits<double>::quiet_NaN(), true};
  if (take_word("Infinity")) return NotFinite{kInfinity, true};
  if (take_word("-Infinity")) return NotFinite{-kInfinity, true};
  if (next == '-' || (next >= '0' && next <= '9')) return number();
  fail("expected a value");
}

size_t JsonReader::digits() {
  const size_t end = std::min(text_.find_first_not_of("0123456789", at_), text_.size());
  return end - std::exchange(at_, end);
}

JsonReader::Scalar JsonReader::number() {
  const size_t begin = at_;
  const auto digit_wanted = [&] {
    if (digits() == 0) fail("expected a digit");
  };
  const auto next_is = [&](std::string_view any) {
    return at_ < text_.size() && any.find(text_[at_]) != any.npos;
  };
  const bool is_negative = take_word("-");
  if (!take_word("0")) digit_wanted();
  bool is_integer = true;
  if (take_word(".")) {
    digit_wanted();
    is_integer = false;
  }
  if (next_is("eE")) {
    ++at_;
    if (next_is("+-")) ++at_;
    digit_wanted();
    is_integer = false;
  }
  const std::string_view text = text_.substr(begin, at_ - begin);
  const char* const end = text.data() + text.size();
  if (is_integer) {  // a longer one is a double
    int64_t with_sign = 0;
    uint64_t without = 0;
    if (is_negative && std::from_chars(text.data(), end, with_sign).ec == std::errc())
      return with_sign;
    if (!is_negative && std::from_chars(text.data(), end, without).ec == std::errc())
      return without;
  }
  double value = 0;
  if (std::from_chars(text.data(), end, value).ec == std::errc()) return value;
  if (is_huge(text)) return NotFinite{is_negative ? -kInfinity : kInfinity, false};
  return is_negative ? -0.0 : 0.0;
}

std::string JsonReader::string() {
  require('"');
  std::string value;
  for (;;) {
    const size_t begin = at_;
    while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\') {
      const auto byte = static_cast<unsigned char>(text_[at_]);
      if (byte < 0x20) fail(cat("control byte ", int{byte}, " in a string"));
      if (byte < 0x80) {
        ++at_;
        continue;
      }
      const size_t n_bytes = utf8_char_bytes(text_.substr(at_));
      if (n_bytes == 0) fail("a string that is not UTF-8");
      at_ += n_bytes;
    }
    value += text_.substr(begin, at_ - begin);
    if (at_ == text_.size()) fail("a string without an end");
    if (text_[at_++] == '"') return value;
    escape(value);
  }
}

// Behind the backslash.
void JsonReader::escape(std::string& to) {
  const size_t begin = at_ - 1;
  constexpr std::string_view kNames = "\"\\/bfnrt", kBytes = "\"\\/\b\f\n\r\t";
  const char name = at_ < text_.size() ? text_[at_] : '\0';
  if (const size_t found = kNames.find(name); found != kNames.npos) {
    ++at_;
    to += kBytes[found];
    return;
  }
  if (!take_word("u")) fail("an unknown escape");
  uint32_t c = hex4();
  const auto is_in = [&](uint32_t low, uint32_t high) { return c >= low && c <= high; };
  if (is_in(0xd800, 0xdbff) && take_word("\\u")) {
    const uint32_t high = c;
    c = hex4();
    if (is_in(0xdc00, 0xdfff))
      return append_utf8(0x10000 + ((high & 0x3ff) << 10 | (c & 0x3ff)), to);
    c = high;
  }
  // Python has strings with half a character. No text in UTF-8 can hold one, and to put U+FFFD
  // there would make one string of two.
  if (is_in(0xd800, 0xdfff)) fail_at(begin, "an escape that is half of a surrogate pair");
  append_utf8(c, to);
}

uint32_t JsonReader::hex4() {
  const std::string_view digits = text_.substr(at_, 4);
  uint32_t value = 0;
  const char* const end = digits.data() + digits.size();
  const auto [stop, fault] = std::from_chars(digits.data(), end, value, 16);
  if (digits.size() < 4 || fault != std::errc() || stop != end) fail("expected four hex digits");
  at_ += 4;
  return value;
}

}  // namespace minfer
