#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace minfer {

// One JSON value from a file that is not trusted, with white space around it and nothing else.
// Stricter than the library: at most 64 levels, no key twice in an object, no NUL byte, no byte
// order mark. Strings are valid UTF-8; NaN, Infinity and numbers past a double are refused. Throws
// Input with the byte where it happened; takes no stack per level.
nlohmann::json parse_strict_json(std::string_view text);

}  // namespace minfer
