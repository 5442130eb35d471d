#pragma once

#include <optional>
#include <string>

namespace minfer {

// The bytes of a file, or of stdin for "-". Throws Input where it is missing or a directory, System
// where it cannot be read.
std::string read_text(const std::string& path);

// What a pipe or file brings on stdin; none where stdin is a terminal or a device, or nothing
// comes.
std::optional<std::string> piped_text();

// A text given by one of: positional argument, option, file ("-": stdin), or else piped stdin where
// something comes. None where there is nothing; Usage where it is given twice.
struct TextOptions {
  std::optional<std::string> positional, option, file;
};
std::optional<std::string> read_text_options(const TextOptions& options);

}  // namespace minfer
