#pragma once

#include <string>

namespace minfer {

// A new directory in which an output is written, ".NAME.minfer-XXXXXX" beside its final place. It
// is locked while its writer lives, so that the next run for the same output can tell what a killed
// one has left and removes it. The lock is flock's on the directory; on a file system without that
// it is a symbolic link beside the directory, ".NAME.minfer-XXXXXX.lock", that names the process.
class StagingDirectory {
 public:
  // Removes what killed runs have left, too. Throws System, and then nothing is left.
  StagingDirectory(const std::string& parent, const std::string& name);
  ~StagingDirectory();
  StagingDirectory(const StagingDirectory&) = delete;
  StagingDirectory& operator=(const StagingDirectory&) = delete;

  const std::string& path() const { return path_; }
  // What has the directory's name by now, with all that is in it; false where something stays.
  bool remove() noexcept;

 private:
  bool lock();  // false: another process has taken the directory for a stale one

  std::string path_;
  int descriptor_ = -1;    // holds flock's lock
  bool has_link_ = false;  // in its place
};

// For a process that ends at once: removes the staging directories that are open.
void remove_open_staging_directories() noexcept;

}  // namespace minfer
