#pragma once

#include <string>

#include "tools/command_line.h"

namespace minfer {

// Help of a command, examples first; `upto` More: with every option, and every command below.
std::string help_text(const CommandNode& command, Show upto);

}  // namespace minfer
