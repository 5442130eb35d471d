#include "tools/output.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/utf8.h"

namespace minfer {
namespace {

std::string with_replacements(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t n = utf8_char_bytes(text);
    out += n == 0 ? std::string_view("\xef\xbf\xbd") : text.substr(0, n);
    text.remove_prefix(n == 0 ? 1 : n);
  }
  return out;
}

}  // namespace

void Output::write_all(std::string_view bytes) {
  if (is_silent_) return;
  while (!bytes.empty()) {
    const ssize_t n = ::write(STDOUT_FILENO, bytes.data(), bytes.size());
    if (n >= 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
    } else if (errno == EPIPE) {
      throw StdoutClosed{};
    } else {
      MINFER_REQUIRE(System, errno == EINTR, "stdout: ", std::strerror(errno));
    }
  }
}

void Output::text(std::string_view text) {
  if (is_utf8(text)) {
    write_all(text);
  } else {
    write_all(with_replacements(text));
  }
}

void Output::line(std::string_view text) { this->text(std::string(text) + '\n'); }

void Output::close() {
  if (std::exchange(is_closed_, true)) return;
  MINFER_REQUIRE(System, ::close(STDOUT_FILENO) == 0, "stdout: ", std::strerror(errno));
}

bool is_terminal(int fd) { return ::isatty(fd) == 1; }

}  // namespace minfer
