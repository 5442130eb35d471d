#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/base/tensor.h"
#include "tests/support/test_data.h"

namespace minfer::test {

// The names of the small models for which transformers computed float64 logits: folders of
// fixtures_dir().
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

// One of these models: its directory or .gguf, tokens, and the logits of transformers [n_tokens,
// vocab_size].
struct FixtureModel {
  std::string path;
  std::vector<TokenId> ids;
  std::vector<double> logits;
};
inline FixtureModel fixture_model_in(const std::filesystem::path& dir) {
  const std::filesystem::path gguf = dir / "model.gguf";
  const auto expected = nlohmann::json::parse(read_file(dir / "expected.json"));
  FixtureModel fixture{(std::filesystem::exists(gguf) ? gguf : dir).string(),
                       expected.at("ids").get<std::vector<TokenId>>(),
                       {}};
  for (const auto& row : expected.at("logits")) {
    for (const double logit : row) fixture.logits.push_back(logit);
  }
  return fixture;
}

inline FixtureModel fixture_model(const std::string& name) {
  return fixture_model_in(fixtures_dir() / name);
}

// The name of a model in the form that GoogleTest needs.
inline std::string fixture_test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name) {
    if (c == '-' || c == '/') c = '_';
  }
  return name;
}

}  // namespace minfer::test
