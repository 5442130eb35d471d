#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/process.h"
#include "tests/support/temp_dir.h"
#include "tests/tools/tiny_model.h"

namespace minfer::test {

// Tests that run the binary, each in a directory of its own with a tiny model.
class MinferProcess : public testing::Test {
 protected:
  std::vector<std::string> command(std::vector<std::string> args) const {
    args.insert(args.begin(), MINFER_BINARY);
    return args;
  }
  ProcessResult minfer(const std::vector<std::string>& args, ProcessOptions options = {}) const {
    options.environment.try_emplace("XDG_CACHE_HOME", dir_.path());  // no model of the user's
    return run_process(command(args), options);
  }
  // `minfer generate` on the tiny model: greedy, 8 tokens, no end of text.
  ProcessResult generate(std::vector<std::string> args, const ProcessOptions& options = {}) const {
    const std::vector<std::string> first = {"generate", "-m", model_, "--temp",
                                            "0",        "-n", "8",    "--ignore-eos"};
    args.insert(args.begin(), first.begin(), first.end());
    return minfer(args, options);
  }

  TempDir dir_;
  std::string model_ = dir_.write("tiny.gguf", tiny_gguf());
};

// The process ended with `code` and one line on stderr that has `words` in it, and printed nothing.
inline void expect_failure(const ProcessResult& result, int code, const std::string& words) {
  EXPECT_EQ(result.exit_code, code) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
  EXPECT_TRUE(result.err.starts_with("minfer: error: ")) << result.err;
  EXPECT_NE(result.err.find(words), std::string::npos) << result.err;
}

}  // namespace minfer::test
