#pragma once

#include <string>
#include <vector>

namespace minfer {

// The names in a directory, sorted, without "." and "..". Throws Input if there is no such
// directory, System if it cannot be listed. (std::filesystem's iterators end the process if there
// is no memory.)
std::vector<std::string> names_in_directory(const std::string& path);

// Removes a directory with the files and empty directories in it. Returns false if anything
// remains.
bool remove_flat_directory(const std::string& path) noexcept;

}  // namespace minfer
