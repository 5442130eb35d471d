#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace minfer {

// One "key = value" of the file of --config.
struct ConfigItem {
  std::string place;                 // "c.toml:3"
  std::vector<std::string> section;  // names of commands; empty outside of any
  std::string key;
  std::vector<std::string> values;  // several of an array
};

// Throws Input where the file is missing or no TOML, or a value is no text, number, true, false or
// array of these; with file and line.
std::vector<ConfigItem> read_config_file(const std::string& path);

}  // namespace minfer
