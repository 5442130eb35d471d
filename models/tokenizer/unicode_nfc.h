#pragma once

#include <string>
#include <string_view>

namespace minfer {

// `text`, which is valid UTF-8, in Unicode's normalization form C. O(n log n).
std::string nfc(std::string_view text);
// The same in form D.
std::string nfd(std::string_view text);

}  // namespace minfer
