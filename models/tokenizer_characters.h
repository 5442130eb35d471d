#pragma once

#include <string_view>

#include "models/unicode_tables.h"

namespace minfer {

// The character at the start of `text`, whose bytes are one well-formed character of UTF-8.
char32_t code_point_of(std::string_view character);

// Of Unicode's property White_Space.
std::string_view without_leading_white_space(std::string_view text);
std::string_view without_trailing_white_space(std::string_view text);

// A character of a word: alphabetic, a mark, a decimal digit, a connector or a joiner. Bytes that
// are no character are none.
bool starts_with_word(std::string_view text);
bool ends_with_word(std::string_view text);

}  // namespace minfer
