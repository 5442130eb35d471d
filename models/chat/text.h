#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/chat/limits.h"

namespace minfer::jinja {

// UTF-8 text that knows of each byte whether it is the template's own or came from a message. The
// origin changes at `flips`, which are byte positions in rising order, none of them 0 or the end.
struct Text {
  std::string bytes;
  std::vector<uint32_t> flips;
  bool starts_own = true;
  bool markup = false;  // marked by `safe` or `escape`: Python's Markup type

  Text() = default;
  Text(std::string text, bool own) : bytes(std::move(text)), starts_own(own) {}
  bool own_at(size_t at) const;
};

// Appends pieces of text with their origin, within the meter's room.
class TextBuilder {
 public:
  explicit TextBuilder(Meter& meter, size_t limit = kMaxValueBytes)
      : meter_(&meter), limit_(limit) {}
  TextBuilder& add(const Text& text) { return add(text, 0, text.bytes.size()); }
  TextBuilder& add(const Text& text, size_t begin, size_t end);
  TextBuilder& add(std::string_view bytes, bool own = true);
  size_t size() const { return text_.bytes.size(); }
  Text take() { return std::move(text_); }

 private:
  Meter* meter_;
  size_t limit_;
  Text text_;
  bool ends_own_ = true;
};

// ---- Unicode ----

// The code point at text[at], which is valid UTF-8, and its length in bytes.
char32_t code_point_at(std::string_view text, size_t at, size_t& n_bytes);
size_t count_code_points(std::string_view text);

// Python's str.isspace and str.isprintable.
bool is_space(char32_t code);
bool is_printable(char32_t code);
// The end of the white space that begins at `at`; the begin of the white space that ends at `end`.
size_t skip_space(std::string_view text, size_t at);
size_t skip_space_back(std::string_view text, size_t end);

enum class Case { Upper, Lower, Title };
// A letter in another case: up to three code points, as UTF-8.
std::string in_case(char32_t code, Case which);

}  // namespace minfer::jinja
