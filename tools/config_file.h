#pragma once

#include <CLI/CLI.hpp>

namespace minfer {

// --config FILE.toml and MINFER_CONFIG: a key outside of any section belongs to the command that
// runs, or else to every command. Keys that no option has are refused.
void add_config_file_option(CLI::App& root);

}  // namespace minfer
