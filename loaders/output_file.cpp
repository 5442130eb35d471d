#include "loaders/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "kernels/base/error.h"
#include "loaders/file.h"

namespace minfer {
namespace {

[[noreturn]] void fail(const std::string& path, std::string_view what) {
  const int error = errno;
  throw Error(ErrorKind::System,
              cat(shown_path(path), ": cannot ", what, ": ", os_error_text(error)));
}

bool synced(int descriptor) {
  while (fsync(descriptor) != 0) {
    if (errno != EINTR) return false;
  }
  return true;
}

}  // namespace

OutputFile::OutputFile(std::string path) : path_(std::move(path)) {
  do {
    descriptor_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (descriptor_ < 0 && errno == EINTR);
  if (descriptor_ < 0) fail(path_, "create");
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

void OutputFile::write(uint64_t offset, const void* bytes, uint64_t n) {
  const char* from = static_cast<const char*>(bytes);
  while (n > 0) {
    constexpr uint64_t kMostAtOnce = uint64_t{1} << 30;  // the kernel stops a little below 2^31
    const ssize_t done = pwrite(descriptor_, from, static_cast<size_t>(std::min(n, kMostAtOnce)),
                                static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done == 0) errno = ENOSPC;
    if (done <= 0) fail(path_, "write");
    from += done;
    offset += static_cast<uint64_t>(done);
    n -= static_cast<uint64_t>(done);
  }
}

void OutputFile::finish() {
  if (!synced(descriptor_)) fail(path_, "write to the disk");
  if (close(std::exchange(descriptor_, -1)) != 0) fail(path_, "close");
}

void write_file(const std::string& path, std::string_view bytes) {
  OutputFile file(path);
  file.write(0, bytes.data(), bytes.size());
  file.finish();
}

void sync_directory(const std::string& path) {
  int descriptor;
  do {
    descriptor = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  } while (descriptor < 0 && errno == EINTR);
  if (descriptor < 0) fail(path, "open");
  const bool done = synced(descriptor);
  const int error = errno;
  close(descriptor);
  errno = error;
  if (!done) fail(path, "write to the disk");
}

}  // namespace minfer
