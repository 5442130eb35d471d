#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace minfer::test {

// Data from outside the project: $MINFER_TEST_DATA, else ../shared/data beside it.
inline std::filesystem::path data_dir() {
  const char* set = std::getenv("MINFER_TEST_DATA");
  return set != nullptr && *set != '\0' ? set : MINFER_DEFAULT_TEST_DATA;
}

// Small files that are committed to the repository.
inline std::filesystem::path fixtures_dir() { return MINFER_FIXTURES; }

// Where scripts/get_model.sh puts SmolLM2.
inline std::filesystem::path smollm2_path() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::filesystem::path base = cache != nullptr && *cache != '\0'
                                         ? std::filesystem::path(cache)
                                         : std::filesystem::path(home ? home : "/") / ".cache";
  return base / "minfer/models/SmolLM2-135M-Instruct.Q4_1.gguf";
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << "cannot read " << path;
  std::ostringstream text;
  text << in.rdbuf();
  return std::move(text).str();
}

}  // namespace minfer::test

// Skips the test, with the reason, if a file does not exist.
#define MINFER_NEEDS(path)                                                         \
  do {                                                                             \
    if (!std::filesystem::exists(path)) GTEST_SKIP() << (path) << " is not there"; \
  } while (false)
