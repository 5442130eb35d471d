#pragma once

#include <cstdint>
#include <string>

namespace minfer {

// "512 B", "8.2 MB", "13.48 GB": decimal units, the largest that is filled.
std::string bytes_text(int64_t n_bytes);

}  // namespace minfer
