#pragma once

#include <string_view>

#include "models/tokenizer/unicode_tables.h"

namespace minfer {

// Unicode's White_Space.
std::string_view without_leading_white_space(std::string_view text);
std::string_view without_trailing_white_space(std::string_view text);

// A character of a word: alphabetic, a mark, a decimal digit, a connector or a joiner. Bytes that
// are no character are none.
bool starts_with_word(std::string_view text);
bool ends_with_word(std::string_view text);

}  // namespace minfer
