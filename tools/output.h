#pragma once

#include <string>
#include <string_view>

namespace minfer {

// The reader of stdout has gone: the process ends with 141, as by SIGPIPE, and without a word.
struct StdoutClosed {};

// The only writer to stdout. Everything is written through at once and whole; what is not UTF-8
// comes out as U+FFFD. Throws StdoutClosed, or System where the write fails.
class Output {
 public:
  void text(std::string_view text);
  void line(std::string_view text);
  void silence() { is_silent_ = true; }  // from here on nothing is written
  // Closes stdout, once: some file systems report a failed write only here.
  void close();

 private:
  void write_all(std::string_view bytes);

  bool is_closed_ = false, is_silent_ = false;
};

bool is_terminal(int fd);

}  // namespace minfer
