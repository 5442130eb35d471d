#pragma once

#include <cstdint>
#include <string>

namespace minfer {

// Output that appears whole under its name or not at all. It is written into a directory of its own
// beside the final place, ".NAME.minfer-XXXXXX", and renamed from there. The directory is locked
// (flock) while its writer lives, so that the next run for the same output can tell what a killed
// one has left and removes it.
class Staging {
 public:
  // Throws System where `output` exists and is not to be replaced, or where the directory cannot be
  // made.
  Staging(const std::string& output, bool replace);
  ~Staging();  // removes what has not been committed
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  const std::string& directory() const { return directory_; }
  // Throws System where the file system has less room.
  void require_space(int64_t n_bytes) const;

  // All files are on the disk: the directory gets the final name, ...
  void commit_directory();
  // ... or the one file `name` in it does.
  void commit_file(const std::string& name);

 private:
  void commit(const std::string& from);

  std::string output_, parent_, directory_;
  bool replace_;
  int lock_ = -1;
};

// Throws Usage where writing `output` would touch `input`: the same file or directory, or one
// inside the other.
void require_apart(const std::string& input, const std::string& output);

}  // namespace minfer
