#pragma once

#include <string>

namespace minfer {

// A new directory in which an output is written, ".NAME.minfer-XXXXXX" beside its final place. It
// is locked while its writer lives, so that the next run for the same output can recognize and
// remove what a killed run has left. The lock is flock's on the directory; on a file system without
// flock it is a symbolic link beside it, ".NAME.minfer-XXXXXX.lock", that names the process.
class StagingDirectory {
 public:
  // Also removes what killed runs have left. If it throws (System), no directory is left.
  StagingDirectory(const std::string& parent, const std::string& name);
  ~StagingDirectory();
  StagingDirectory(const StagingDirectory&) = delete;
  StagingDirectory& operator=(const StagingDirectory&) = delete;

  const std::string& path() const { return path_; }
  // Removes what has the directory's name now, with its content. False if something remains.
  bool remove() noexcept;

 private:
  bool lock();  // false: another process has taken the directory for a stale one

  std::string path_;
  int descriptor_ = -1;    // holds flock's lock
  bool has_link_ = false;  // whether a symbolic link is the lock
};

// For a process that ends without destructors: removes the staging directory that is open.
void remove_open_staging_directories() noexcept;

}  // namespace minfer
