#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace minfer {

// Completion scripts from the option tree.
std::string bash_completion(const CLI::App& root);
std::string zsh_completion(const CLI::App& root);
std::string fish_completion(const CLI::App& root);

// The manual page (section 1) in roff.
std::string man_page(const CLI::App& root);

}  // namespace minfer
