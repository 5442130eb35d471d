#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "loaders/earlier_output.h"
#include "loaders/staging_directory.h"

namespace minfer {

// An output that appears whole under its name or not at all: it is written into a directory beside
// the final place and renamed from there. The constructor checks for what could prevent the
// renaming.
class Staging {
 public:
  // Throws System if `output` exists and `replace` is false or it is not an earlier output of the
  // same kind, or if the directory cannot be made.
  Staging(const std::string& output, OutputKind kind, bool replace);

  const std::string& directory() const { return directory_.path(); }  // removed with this object
  // Throws System if the file system has less free space.
  void require_space(int64_t n_bytes) const;

  // Give the directory, or the file `name` in it, the final name; all files must be on the disk. A
  // failure after that is no error, since the output is there: they return a line for each.
  std::vector<std::string> commit_directory();
  std::vector<std::string> commit_file(const std::string& name);

 private:
  void require_renames();
  int rename_to_new_name(const std::string& from) const;
  int exchange(const std::string& from) const;
  std::vector<std::string> commit(const std::string& from);

  std::string output_, parent_;
  OutputKind kind_;
  bool replace_;
  StagingDirectory directory_;
  bool has_noreplace_ = false, has_exchange_ = false;  // of renameat2, on this file system
};

}  // namespace minfer
