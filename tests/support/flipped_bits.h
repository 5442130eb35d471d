#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/test_data.h"

namespace minfer::test {

// Flips bits of every file of a directory, one at a time: flips a bit, calls f(file name, bit), and
// flips it back. It takes all bits, or about `n_per_file` spread over each file. Returns their
// number.
template <typename F>
int64_t for_flipped_bits(const std::filesystem::path& directory, F f,
                         int64_t n_per_file = std::numeric_limits<int64_t>::max()) {
  std::vector<std::filesystem::path> files;
  for (const auto& item : std::filesystem::directory_iterator(directory)) files.push_back(item);
  int64_t n_flips = 0;
  for (const auto& path : files) {
    const std::string sound = read_file(path);
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    const auto put = [&](int64_t byte, int value) {
      file.seekp(byte);
      file.put(static_cast<char>(value));
      file.flush();
    };
    const int64_t n_bits = 8 * std::ssize(sound);
    const int64_t step = n_bits / n_per_file | 1;  // odd, so that it hits every bit of a byte
    for (int64_t bit = 0; bit < n_bits; bit += step, ++n_flips) {
      const int64_t byte = bit / 8;
      put(byte, sound[static_cast<size_t>(byte)] ^ 1 << bit % 8);
      f(path.filename().string(), bit);
      put(byte, sound[static_cast<size_t>(byte)]);
    }
    EXPECT_TRUE(file.good()) << path;
  }
  return n_flips;
}

}  // namespace minfer::test
