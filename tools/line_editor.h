#pragma once

#include <cstdio>

#include "tools/line_reader.h"

namespace minfer {

// Lines of a terminal, edited with libedit, whose prompts and echo go to `out`.
std::unique_ptr<LineReader> make_line_editor(std::FILE* out);

// Input: there is something to read. Interrupt: Ctrl-C or SIGTERM came first, or has come already.
// Signal: another one.
enum class Woken { Input, Signal, Interrupt };
Woken wait_for_stdin();

}  // namespace minfer
