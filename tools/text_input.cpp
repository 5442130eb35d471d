#include "tools/text_input.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kernels/base/error.h"
#include "tools/log.h"
#include "tools/mpi_ranks.h"
#include "tools/output.h"
#include "tools/process.h"

namespace minfer {
namespace {

// Ctrl-C while a terminal or pipe is waited for ends the process.
std::string read_all(int fd, const std::string& name) {
  std::string text;
  char buffer[1 << 16];
  while (true) {
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    throw_if_interrupted();
    if (n == 0) return text;
    if (n > 0) {
      text.append(buffer, static_cast<size_t>(n));
    } else if (errno == EISDIR) {
      throw Error(ErrorKind::Input, cat(name, ": is a directory"));
    } else {
      MINFER_REQUIRE(System, errno == EINTR, name, ": ", std::strerror(errno));
    }
  }
}

std::string read_text_here(const std::string& path) {
  if (path == "-") return read_all(STDIN_FILENO, "stdin");
  const std::string name = shortened(path, 200);
  int fd;
  do {
    fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    throw_if_interrupted();
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) {
    const bool missing =
        errno == ENOENT || errno == ENOTDIR || errno == ELOOP || errno == ENAMETOOLONG;
    throw Error(missing ? ErrorKind::Input : ErrorKind::System,
                cat(name, ": ", std::strerror(errno)));
  }
  struct Closer {
    int fd;
    ~Closer() { ::close(fd); }
  } closer{fd};
  return read_all(fd, name);
}

std::optional<std::string> piped_text_here() {
  struct ::stat status {};
  const bool readable =
      ::fstat(STDIN_FILENO, &status) == 0 &&
      (S_ISFIFO(status.st_mode) || S_ISREG(status.st_mode) || S_ISSOCK(status.st_mode));
  if (!readable) return std::nullopt;
  // An open pipe that brings nothing would otherwise look like a hang.
  ::pollfd input{STDIN_FILENO, POLLIN, 0};
  if (::poll(&input, 1, /*ms=*/1000) == 0) {
    log_info("stdin is open and read to its end; </dev/null where there is nothing to read");
  }
  throw_if_interrupted();  // a signal that came during poll would not end the read
  std::string piped = read_all(STDIN_FILENO, "stdin");
  if (piped.empty()) return std::nullopt;
  return piped;
}

}  // namespace

std::string read_text(const std::string& path) {
  return from_first_process([&] { return read_text_here(path); });
}

std::optional<std::string> piped_text() {
  // One letter in front: that there is a text, as there may be none.
  const std::string text = from_first_process([] {
    const std::optional<std::string> piped = piped_text_here();
    return piped ? "y" + *piped : std::string("n");
  });
  if (text.front() == 'n') return std::nullopt;
  return text.substr(1);
}
std::optional<std::string> read_text_options(const TextOptions& options) {
  const int given = int(options.positional.has_value()) + int(options.option.has_value()) +
                    int(options.file.has_value());
  MINFER_REQUIRE(Usage, given <= 1,
                 "the text is given more than once: as an argument, an option or a file");
  if (options.positional) return options.positional;
  if (options.option) return options.option;
  if (options.file) return read_text(*options.file);
  return piped_text();
}

}  // namespace minfer
