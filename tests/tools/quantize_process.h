#pragma once

#include <set>

#include "tests/support/test_data.h"
#include "tests/tools/minfer_process.h"

namespace minfer::test {

namespace fs = std::filesystem;

inline std::set<std::string> names_in(const fs::path& directory) {
  std::set<std::string> names;
  for (const auto& item : fs::directory_iterator(directory)) {
    names.insert(item.path().filename());
  }
  return names;
}

// Every file of a directory by name.
inline std::map<std::string, std::string> files_in(const fs::path& directory) {
  std::map<std::string, std::string> files;
  for (const std::string& name : names_in(directory)) files[name] = read_file(directory / name);
  return files;
}

// The input lies in `in`, everything else appears beside it.
class Quantize : public MinferProcess {
 protected:
  Quantize() {
    fs::create_directory(in_);
    fs::copy(fixtures_dir() / "models/llama-head64-f16", in_, fs::copy_options::recursive);
    dir_.write("in/tokenizer.model", "not read by quantize");
  }

  ProcessResult quantize(std::vector<std::string> args, const ProcessOptions& options = {}) const {
    args.insert(args.begin(), {"quantize"});
    return minfer(args, options);
  }
  // `bytes` as the limit of a file's size.
  ProcessResult quantize_limited(int kib, const std::string& output) const {
    const std::string command = cat("ulimit -f ", kib, "; exec \"$0\" quantize \"$1\" \"$2\"");
    return run_process({"/bin/bash", "-c", command, MINFER_BINARY, in_, output});
  }

  // Nothing but the directory's own files and what a test names.
  void expect_clean(std::set<std::string> also) const {
    also.insert({"in", "tiny.gguf"});
    EXPECT_EQ(names_in(dir_.path()), also);
  }

  const std::string in_ = dir_.path() / "in", out_ = dir_.path() / "out";
};

}  // namespace minfer::test
