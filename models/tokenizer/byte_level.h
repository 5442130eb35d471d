#pragma once

#include <string>
#include <string_view>

namespace minfer {

// GPT-2 spells each byte as one character that can be printed: itself where it is one, else one of
// U+0100 and up.
std::string byte_level_spelling(std::string_view bytes);

// Back: the bytes of a piece; a piece with other characters stands for itself.
std::string byte_level_bytes(std::string_view piece);

}  // namespace minfer
