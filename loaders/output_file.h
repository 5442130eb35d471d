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
  void finish();  // syncs the file to the disk and closes it

 private:
  std::string path_;
  int descriptor_ = -1;
};

// Writes a whole small file and syncs it to the disk.
void write_file(const std::string& path, std::string_view bytes);

// Syncs the entries of a directory to the disk.
void sync_directory(const std::string& path);

}  // namespace minfer
