#pragma once

#include <string>
#include <vector>

namespace minfer {

// What a directory lists, without "." and "..", sorted. Throws Input where there is no such
// directory, System where it cannot be listed. (std::filesystem's iterators end the process where
// memory ends.)
std::vector<std::string> names_in_directory(const std::string& path);

// A directory and what it holds: files and empty directories; others stay. False where anything
// stays.
bool remove_flat_directory(const std::string& path) noexcept;

}  // namespace minfer
