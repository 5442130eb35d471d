#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace minfer {

// A regular file open for reading, with the identity it had then. Reads are positioned copies, not
// mappings: a file that shrinks meanwhile is an Error and not a SIGBUS. Reading is thread-safe.
class File {
 public:
  // Throws Input where there is no such regular file (a directory, a pipe, a device) or only what
  // stands for it (a git-lfs pointer, a web page), System where the operating system refuses.
  explicit File(std::string path);
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;

  const std::string& path() const { return path_; }
  uint64_t size() const { return identity_.size; }

  // Bytes [offset, offset + n), all of them. Throws System where they cannot be read.
  void read(uint64_t offset, void* to, uint64_t n) const;
  // The same bytes in pieces of a few MiB, in order.
  void read_pieces(uint64_t offset, uint64_t n,
                   const std::function<void(const char*, size_t)>& take) const;
  // Throws System where the path no longer names the file that was opened, or it has been written.
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
  void read_part(uint64_t offset, char* out, uint64_t n) const;  // by this thread alone

  std::string path_;
  int descriptor_ = -1;
  Identity identity_;
};

// Whether there is something at the end of the path; File says what is wrong with it.
bool path_exists(const std::filesystem::path& path);

// "No space left on device" for ENOSPC.
std::string os_error_text(int error);

// The path on one line, for messages.
std::string shown_path(const std::string& path);

// A small file as it is. Throws as File does, and Input where it has more than max_bytes.
std::string read_whole_file(const std::string& path, uint64_t max_bytes);

}  // namespace minfer
