#pragma once

#include <cstddef>
#include <string_view>

namespace minfer {

// White space in UTF-8 text is what Python's str.isspace takes for it: the recipes of others that
// are followed here were written in Python.

// Bytes of the white space character at the start of `text`, or 0.
size_t space_bytes(std::string_view text);

std::string_view without_trailing_space(std::string_view text);
std::string_view trimmed(std::string_view text);  // at both ends

}  // namespace minfer
