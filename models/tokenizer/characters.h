#pragma once

#include <string_view>

#include "models/tokenizer/unicode_tables.h"

namespace minfer {

// Remove white space, which is Unicode's White_Space, from one end.
std::string_view without_leading_white_space(std::string_view text);
std::string_view without_trailing_white_space(std::string_view text);

// Whether a word character is at this end: an alphabetic character, a mark, a decimal digit, a
// connector or a joiner. Bytes that are not UTF-8 are none.
bool starts_with_word(std::string_view text);
bool ends_with_word(std::string_view text);

}  // namespace minfer
