#include "loaders/file.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/math.h"
#include "kernels/base/parallel.h"
#include "kernels/base/usable_cores.h"
#include "loaders/foreign_file.h"

namespace minfer {
namespace {

[[noreturn]] void throw_open_error(const std::string& path, int error) {
  const bool is_input = error == ENOENT || error == ENOTDIR || error == ENAMETOOLONG ||
                        error == ELOOP || error == ENXIO;
  throw Error(is_input ? ErrorKind::Input : ErrorKind::System,
              cat(shown_path(path), ": cannot open: ", os_error_text(error)));
}

}  // namespace

bool path_exists(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

std::string os_error_text(int error) { return std::generic_category().message(error); }

std::string shown_path(const std::string& path) { return shortened(path, PATH_MAX); }

File::Identity File::identity_of(const struct ::stat& status) {
  return {status.st_dev, status.st_ino, static_cast<uint64_t>(status.st_size),
          status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
}

File::File(std::string path) : path_(std::move(path)) {
  // O_NONBLOCK: opening a pipe must not wait for its writer. It has no effect on a regular file.
  do {
    descriptor_ = open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  } while (descriptor_ < 0 && errno == EINTR);
  if (descriptor_ < 0) throw_open_error(path_, errno);
  struct stat status {};
  const int error = fstat(descriptor_, &status) == 0 ? 0 : errno;
  if (error != 0 || !S_ISREG(status.st_mode)) {
    close(descriptor_);
    if (error != 0) throw_open_error(path_, error);
    throw Error(ErrorKind::Input,
                cat(shown_path(path_), S_ISDIR(status.st_mode) ? ": is a directory, expected a file"
                                                               : ": not a regular file"));
  }
  identity_ = identity_of(status);
  std::string start(std::min<uint64_t>(size(), kStandInBytes), '\0');
  const std::string wrong = stand_in(read_start(start.data(), start.size()));
  if (!wrong.empty()) {
    close(descriptor_);
    throw Error(ErrorKind::Input, cat(shown_path(path_), ": ", wrong));
  }
}

std::string_view File::read_start(char* out, size_t n) const {
  const ssize_t got = pread(descriptor_, out, n, 0);  // a read that fails is told when it matters
  return {out, got > 0 ? static_cast<size_t>(got) : 0};
}

File::~File() {
  if (descriptor_ >= 0) close(descriptor_);
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      identity_(other.identity_) {}

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(identity_, other.identity_);
  return *this;
}

void File::read(uint64_t offset, void* to, uint64_t n) const {
  MINFER_CHECK(offset <= size() && n <= size() - offset, "read of ", n, " bytes at ", offset,
               " in a file of ", size());
  // One thread copies a few GB/s out of the page cache.
  constexpr int64_t kPartBytes = 32 << 20;
  static const int n_threads = std::min(8, usable_cores());
  parallel_for(n_threads, ceil_div(narrow<int64_t>(n), kPartBytes), [&](int64_t part) {
    const auto begin = static_cast<uint64_t>(part * kPartBytes);
    read_part(offset + begin, static_cast<char*>(to) + begin,
              std::min(uint64_t{kPartBytes}, n - begin));
  });
}

void File::read_part(uint64_t offset, char* out, uint64_t n) const {
  while (n > 0) {
    const ssize_t got = pread(descriptor_, out, static_cast<size_t>(n), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    MINFER_REQUIRE(System, got >= 0, shown_path(path_), ": cannot read at byte ", offset, ": ",
                   os_error_text(errno));
    MINFER_REQUIRE(System, got > 0, shown_path(path_), ": ends at byte ", offset, ", had ", size(),
                   " bytes when it was opened");
    out += got;
    offset += static_cast<uint64_t>(got);
    n -= static_cast<uint64_t>(got);
  }
}

void File::read_pieces(uint64_t offset, uint64_t n,
                       const std::function<void(const char*, size_t)>& take) const {
  constexpr uint64_t kPieceBytes = 4 << 20;
  std::vector<char> piece;
  for (uint64_t at = 0; at < n; at += piece.size()) {
    piece.resize(std::min(kPieceBytes, n - at));
    read(offset + at, piece.data(), piece.size());
    take(piece.data(), piece.size());
  }
}

void File::check_unchanged() const {
  struct stat status {};
  MINFER_REQUIRE(System, stat(path_.c_str(), &status) == 0, shown_path(path_),
                 ": went away while it was read: ", os_error_text(errno));
  MINFER_REQUIRE(System, identity_of(status) == identity_, shown_path(path_),
                 ": changed while it was read");
}

std::string read_whole_file(const std::string& path, uint64_t max_bytes) {
  const File file(path);
  MINFER_REQUIRE(Input, file.size() <= max_bytes, shown_path(path), ": has ", file.size(),
                 " bytes, at most ", max_bytes, " are accepted");
  std::string text(file.size(), '\0');
  file.read(0, text.data(), text.size());
  return text;
}

}  // namespace minfer
