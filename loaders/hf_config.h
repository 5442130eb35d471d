#pragma once

#include <string>
#include <string_view>

#include "loaders/metadata.h"

namespace minfer {

// Reads config.json; keys of nested objects are joined by dots. An array whose elements have one
// type becomes one value; in any other, each element but null becomes a key, "name.0" and so on.
Metadata read_hf_config(const std::string& path);
// The same from its text. Throws Input without the name of the file.
Metadata parse_hf_config(std::string_view text);

}  // namespace minfer
