#pragma once

#include <optional>
#include <string>

namespace minfer {

// The bytes of a file, or of stdin for "-". Throws Input where it is missing or a directory, System
// where it cannot be read.
std::string read_text(const std::string& path);

// A text given by one of: positional argument, option, file ("-": stdin), or else piped stdin where
// something comes. None where there is nothing; Usage where it is given twice.
struct TextOptions {
  std::optional<std::string> positional, option, file;
};
std::optional<std::string> read_text_options(const TextOptions& options);

}  // namespace minfer
