#pragma once

#include <string>

#include "tools/command_line.h"

namespace minfer {

// Completion scripts from the option tree.
std::string bash_completion(const CommandNode& root);
std::string zsh_completion(const CommandNode& root);
std::string fish_completion(const CommandNode& root);

// The manual page (section 1) in roff.
std::string man_page(const CommandNode& root);

}  // namespace minfer
