#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace minfer {

// A new file that is being written, at any offset. Every failure (disk full, a file size limit) is
// a System error that names the file.
class OutputFile {
 public:
  explicit OutputFile(std::string path);  // must not exist yet
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::string& path() const { return path_; }
  void write(uint64_t offset, const void* bytes, uint64_t n);
  void finish();  // to the disk, and closed

 private:
  std::string path_;
  int descriptor_ = -1;
};

// A whole small file, on the disk when this returns.
void write_file(const std::string& path, std::string_view bytes);

// What a directory lists, on the disk.
void sync_directory(const std::string& path);

}  // namespace minfer
