#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "loaders/earlier_output.h"
#include "loaders/staging_directory.h"

namespace minfer {

// Output that appears whole under its name or not at all: it is written into a directory beside the
// final place and renamed from there. What could keep it from its name at the end is looked for at
// the beginning.
class Staging {
 public:
  // Throws System where `output` exists and is not to be replaced or no earlier output of the same
  // kind, and where the directory cannot be made.
  Staging(const std::string& output, OutputKind kind, bool replace);

  const std::string& directory() const { return directory_.path(); }  // goes with this object
  // Throws System where the file system has less room.
  void require_space(int64_t n_bytes) const;

  // All files are on the disk: the directory gets the final name, or the one file `name` in it
  // does. What goes wrong after that is no error, as the output is there: returns a line for each.
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
