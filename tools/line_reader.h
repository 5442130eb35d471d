#pragma once

#include <memory>
#include <string>

namespace minfer {

// Where lines come from: a person at a terminal, or a pipe or file.
class LineReader {
 public:
  enum class Got { Line, EndOfInput, Interrupt };

  virtual ~LineReader() = default;
  // The next line without its end. Interrupt: Ctrl-C or SIGTERM came first, and interrupt_flag() is
  // set; what was typed is dropped. Throws System where stdin cannot be read.
  virtual Got read(const std::string& prompt, std::string& line) = 0;
  // Somebody types the lines, and sees the prompts.
  virtual bool is_interactive() const = 0;
};

// Of stdin: with line editing and a history in ${XDG_STATE_HOME:-~/.local/state}/minfer/history
// where it is a terminal, and so is stderr or stdout for the prompts.
std::unique_ptr<LineReader> make_line_reader();

}  // namespace minfer
