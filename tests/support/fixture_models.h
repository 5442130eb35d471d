#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/test_data.h"

namespace minfer::test {

// The small models with logits that transformers gave in float64, as folders of fixtures_dir().
inline std::vector<std::string> fixture_models() {
  std::vector<std::string> names;
  for (const std::filesystem::path folder : {"models", "quantized"}) {
    for (const auto& entry : std::filesystem::directory_iterator(fixtures_dir() / folder)) {
      names.push_back(folder / entry.path().filename());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Such a name as GoogleTest wants it.
inline std::string fixture_test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name) {
    if (c == '-' || c == '/') c = '_';
  }
  return name;
}

}  // namespace minfer::test
