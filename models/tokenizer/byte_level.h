#pragma once

#include <string>
#include <string_view>

namespace minfer {

// Spells bytes as GPT-2 does, each as one printable character: the one with the byte's code if that
// is printable, else one from U+0100 up.
std::string byte_level_spelling(std::string_view bytes);

// The reverse: the bytes that a piece spells. A piece with other characters is returned as it is.
std::string byte_level_bytes(std::string_view piece);

}  // namespace minfer
