#include "tools/line_reader.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kernels/base/error.h"
#include "tools/line_editor.h"
#include "tools/output.h"
#include "tools/process.h"

namespace minfer {
namespace {

// Lines of a pipe or file; "\r\n" ends one too.
class PlainReader final : public LineReader {
 public:
  Got read(const std::string&, std::string& line) override {
    size_t end;
    while ((end = pending_.find('\n', searched_)) == std::string::npos) {
      searched_ = pending_.size();
      Woken woken;
      while ((woken = wait_for_stdin()) == Woken::Signal) {
      }
      if (woken == Woken::Interrupt) return Got::Interrupt;
      if (!append()) break;
    }
    if (end == std::string::npos && begin_ == pending_.size()) return Got::EndOfInput;
    line = pending_.substr(begin_, end == std::string::npos ? end : end - begin_);
    if (line.ends_with('\r')) line.pop_back();
    begin_ = searched_ = end == std::string::npos ? pending_.size() : end + 1;
    return Got::Line;
  }
  bool is_interactive() const override { return false; }

 private:
  // False at the end of the input.
  bool append() {
    pending_.erase(0, begin_);
    searched_ -= begin_;
    begin_ = 0;
    char buffer[1 << 16];
    const ssize_t n = ::read(STDIN_FILENO, buffer, sizeof buffer);
    MINFER_REQUIRE(Input, n >= 0 || errno != EISDIR, "stdin: is a directory");
    MINFER_REQUIRE(System, n >= 0 || errno == EINTR, "stdin: ", std::strerror(errno));
    if (n > 0) pending_.append(buffer, static_cast<size_t>(n));
    return n != 0;
  }

  std::string pending_;
  size_t begin_ = 0;     // of the next line in pending_
  size_t searched_ = 0;  // no line ends before
};

}  // namespace

Woken wait_for_stdin() {
  // A signal that another thread takes wakes nothing here, so that the flag is looked at in turns.
  constexpr int kMilliseconds = 100;
  pollfd file = {STDIN_FILENO, POLLIN, 0};
  while (!interrupt_flag().load()) {
    const int n = ::poll(&file, 1, kMilliseconds);
    if (n < 0 && errno == EINTR) return interrupt_flag().load() ? Woken::Interrupt : Woken::Signal;
    if (n != 0) return Woken::Input;  // or an error, which read() tells
  }
  return Woken::Interrupt;
}

std::unique_ptr<LineReader> make_line_reader() {
  if (!is_terminal(STDIN_FILENO)) return std::make_unique<PlainReader>();
  if (is_terminal(STDERR_FILENO)) return make_line_editor(stderr);
  if (is_terminal(STDOUT_FILENO)) return make_line_editor(stdout);
  return std::make_unique<PlainReader>();
}

}  // namespace minfer
