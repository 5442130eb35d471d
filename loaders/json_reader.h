#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

namespace minfer {

// NaN, Infinity or -Infinity, which Python writes but JSON does not have; or a number beyond the
// range of double, which Python reads as infinite.
struct NotFinite {
  double value;
  bool is_word;  // one of the three words, else a number
};

// A cursor over a JSON text, strict to RFC 8259 except for NotFinite and a byte order mark, which
// its caller may refuse. Every error is an Input error with the byte where it happened, counted
// from 1.
class JsonReader {
 public:
  using Scalar =
      std::variant<std::nullptr_t, bool, int64_t, uint64_t, double, NotFinite, std::string>;

  // `text` outlives the reader; a byte order mark in front of it is skipped.
  explicit JsonReader(std::string_view text);

  bool has_byte_order_mark() const { return has_byte_order_mark_; }
  // The next byte that is no white space, or 0 at the end.
  char peek();
  // Takes that byte if it is `wanted`.
  bool take(char wanted);
  void require(char wanted);
  void require_end();
  // Any value but an object or an array.
  Scalar scalar();
  std::string string();

  size_t position() const { return at_; }
  [[noreturn]] void fail(std::string_view what) const { fail_at(at_, what); }
  [[noreturn]] void fail_at(size_t at, std::string_view what) const;

 private:
  bool take_word(std::string_view word);
  Scalar number();
  size_t digits();  // takes the digits at the cursor and returns how many there are
  void escape(std::string& to);
  uint32_t hex4();

  std::string_view text_;
  size_t at_ = 0;
  bool has_byte_order_mark_ = false;
};

}  // namespace minfer
