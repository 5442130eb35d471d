#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace minfer {

// A regular file that is open for reading, with the identity it had when it was opened. It is read
// by pread, not mapped: a file that shrinks causes an Error, not a SIGBUS. Reading is thread-safe.
class File {
 public:
  // Throws Input if the path is no regular file (missing, a directory, a pipe, a device) or only a
  // stand-in for one (a git-lfs pointer, a web page); System if the operating system refuses.
  explicit File(std::string path);
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;

  const std::string& path() const { return path_; }
  uint64_t size() const { return identity_.size; }

  // Reads bytes [offset, offset + n), all of them. Throws System if they cannot be read.
  void read(uint64_t offset, void* to, uint64_t n) const;
  // Reads the same bytes in pieces of a few MiB, in order.
  void read_pieces(uint64_t offset, uint64_t n,
                   const std::function<void(const char*, size_t)>& take) const;
  // Throws System if the path no longer names the file that was opened, or that file has changed.
  void check_unchanged() const;

 private:
  struct Identity {
    dev_t device = 0;
    ino_t inode = 0;
    uint64_t size = 0;
    time_t modified_s = 0;
    long modified_ns = 0;
    bool operator==(const Identity&) const = default;
  };
  static Identity identity_of(const struct ::stat& status);
  std::string_view read_start(char* out, size_t n) const;
  void read_part(uint64_t offset, char* out, uint64_t n) const;  // on the calling thread

  std::string path_;
  int descriptor_ = -1;
  Identity identity_;
};

// Whether the path leads to something. Opening it as a File says what is wrong with that.
bool path_exists(const std::filesystem::path& path);

// The text of an errno value: "No space left on device" for ENOSPC.
std::string os_error_text(int error);

// The path on one line, for messages.
std::string shown_path(const std::string& path);

// Reads a small file whole. Throws as File does, and Input if it has more than max_bytes.
std::string read_whole_file(const std::string& path, uint64_t max_bytes);

}  // namespace minfer
