#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/temp_dir.h"

namespace minfer::test {

// A small valid model of some format, of which a test damages one file.
struct SampleModel {
  const char* name;
  std::string file;  // the file to damage
  std::string bytes;
  size_t header_bytes;                                           // bytes before the data
  std::vector<std::pair<std::string, std::string>> others = {};  // name and bytes
};

// One sample for each format and each file of a directory.
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
  const std::string& model() const { return model_; }  // the argument of open_source

 private:
  TempDir dir_;
  std::string file_, model_;
};

}  // namespace minfer::test
