#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/temp_dir.h"

namespace minfer::test {

// A small sound model of some format, to be damaged in one of its files.
struct SampleModel {
  const char* name;
  std::string file;  // the one to damage
  std::string bytes;
  size_t header_bytes;                                           // what comes before the data
  std::vector<std::pair<std::string, std::string>> others = {};  // name and bytes
};

// One for each format and each file of a directory.
std::vector<SampleModel> sample_models();

// A sample on disk.
class SampleDir {
 public:
  explicit SampleDir(const SampleModel& sample) : file_(sample.file) {
    bool is_directory = file_ == "config.json";
    for (const auto& [name, bytes] : sample.others) {
      dir_.write(name, bytes);
      is_directory = is_directory || name == "config.json";
    }
    model_ = is_directory ? dir_.path() : dir_.path() / file_;
  }

  // Writes the file to damage.
  void write(std::string_view bytes) const { dir_.write(file_, bytes); }
  const std::string& model() const { return model_; }  // what open_source takes

 private:
  TempDir dir_;
  std::string file_, model_;
};

}  // namespace minfer::test
