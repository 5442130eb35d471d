#include "loaders/hf_weight_files.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string_view>

#include "kernels/base/error.h"
#include "loaders/directory.h"
#include "loaders/file.h"

namespace minfer {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".safetensors", kIndexSuffix = ".safetensors.index.json";
constexpr size_t kMaxNames = 4096;

// Files of the directory by how their names end, in order of their names.
std::vector<std::string> names_ending_in(const std::string& directory, std::string_view suffix) {
  std::vector<std::string> names;
  for (std::string& name : names_in_directory(directory)) {
    if (name.ends_with(suffix) && !name.starts_with("adapter_model")) {
      names.push_back(std::move(name));
    }
    MINFER_REQUIRE(Input, names.size() <= kMaxNames, shown_path(directory), ": has more than ",
                   kMaxNames, " files *", suffix);
  }
  return names;
}

bool is_number(std::string_view text) {
  return text.size() == 5 && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// Whether the names, in order, are STEM-00001-of-0000N.safetensors and so on to the last.
bool is_whole_set(const std::vector<std::string>& names) {
  constexpr std::string_view kOf = "-of-";
  const auto tail_bytes = 1 + 5 + kOf.size() + 5 + kSuffix.size();
  std::string stem, count;
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i].size() <= tail_bytes) return false;
    const std::string_view tail = std::string_view(names[i]).substr(names[i].size() - tail_bytes);
    const std::string_view number = tail.substr(1, 5), of = tail.substr(6, kOf.size());
    const std::string_view n = tail.substr(10, 5);
    if (tail[0] != '-' || of != kOf || !is_number(number) || !is_number(n)) return false;
    if (i == 0) {
      stem = names[i].substr(0, names[i].size() - tail_bytes);
      count = n;
    }
    const bool same_set =
        names[i].starts_with(stem) && n == count && names[i].size() == stem.size() + tail_bytes;
    if (!same_set || std::stoul(std::string(number)) != i + 1) return false;
  }
  return std::stoul(count) == names.size();
}

std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kShown = 4;
  std::string text;
  for (size_t i = 0; i < names.size() && i < kShown; ++i) {
    text += cat(i == 0 ? "" : ", ", shortened(names[i]));
  }
  return text + (names.size() > kShown ? ", ..." : "");
}

}  // namespace

HfWeightFiles find_hf_weight_files(const std::string& directory) {
  const fs::path in(directory);
  const std::string usual = in / "model.safetensors",
                    usual_index = in / "model.safetensors.index.json";
  if (path_exists(usual)) return {"", {usual}};
  if (path_exists(usual_index)) return {usual_index, {}};
  const std::vector<std::string> indexes = names_ending_in(directory, kIndexSuffix);
  if (indexes.size() == 1) return {in / indexes.front(), {}};
  const std::vector<std::string> names = names_ending_in(directory, kSuffix);
  MINFER_REQUIRE(Input, !names.empty(), shown_path(directory),
                 ": has neither model.safetensors nor model.safetensors.index.json");
  MINFER_REQUIRE(Input, names.size() == 1 || (indexes.empty() && is_whole_set(names)),
                 shown_path(directory), ": has no model.safetensors and no index of its own, but ",
                 names.size(), " files that could be meant: ", listed(names));
  HfWeightFiles found;
  for (const std::string& name : names) found.files.push_back(in / name);
  return found;
}

}  // namespace minfer
