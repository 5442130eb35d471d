#pragma once

#include <string>
#include <vector>

namespace minfer {

// What a directory lists, without "." and "..", sorted. Throws Input where there is no such
// directory, System where it cannot be listed. (std::filesystem's iterators end the process where
// memory ends.)
std::vector<std::string> names_in_directory(const std::string& path);

// A directory and the files in it; one that holds directories stays. False where anything stays.
bool remove_flat_directory(const std::string& path) noexcept;

}  // namespace minfer
