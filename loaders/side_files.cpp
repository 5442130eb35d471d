#include "loaders/side_files.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "kernels/base/error.h"
#include "loaders/directory.h"
#include "loaders/file.h"
#include "loaders/quantized_dir.h"
#include "loaders/sha256_sums.h"

namespace minfer {
namespace {

namespace fs = std::filesystem;

bool is_side_file(const std::string& name) {
  constexpr std::array kOwn = {"config.json", kQuantReport, kSha256Sums};
  constexpr std::array kEndings = {".json", ".model", ".txt", ".jinja", ".md"};
  constexpr std::array kStarts = {"LICENSE", "NOTICE", "USE_POLICY"};
  if (name.starts_with('.') || name.ends_with(".index.json") ||
      std::ranges::count(kOwn, std::string_view(name)) > 0) {
    return false;
  }
  return name == kTokenizerGguf ||
         std::ranges::any_of(kEndings, [&](const char* end) { return name.ends_with(end); }) ||
         std::ranges::any_of(kStarts, [&](const char* start) { return name.starts_with(start); });
}

// Whether a link's end is a file of `directory`, a path without links, or of the cache's blobs.
bool leads_home(const fs::path& end, const fs::path& directory) {
  const fs::path snapshots = directory.parent_path();
  if (snapshots.filename() == "snapshots" && end.parent_path() == snapshots.parent_path() / "blobs")
    return true;
  const fs::path inside = end.lexically_relative(directory);
  return !inside.empty() && *inside.begin() != "..";
}

// Why a file is not copied; empty where it is.
std::string fault_of(const fs::path& path, const fs::path& real_directory) {
  std::error_code error;
  const std::string name = path.filename();
  if (fs::symlink_status(path, error).type() == fs::file_type::symlink) {
    const fs::path end = fs::canonical(path, error);
    if (error) return "is a link that leads nowhere";
    if (!leads_home(end, real_directory)) return "is a link out of the model's directory";
  }
  const bool is_one_line = std::ranges::all_of(name, [](char c) { return (c & 0xff) >= 0x20; });
  return is_one_line ? "" : "has a control character in its name";
}

}  // namespace

SideFiles side_files(const std::string& directory) {
  SideFiles files;
  std::error_code error;
  const fs::path real_directory = fs::canonical(directory, error);
  MINFER_REQUIRE(System, !error, shown_path(directory), ": cannot resolve: ", error.message());
  for (const std::string& name : names_in_directory(directory)) {
    const fs::path path = fs::path(directory) / name;
    if (!is_side_file(name) || fs::is_directory(path, error)) continue;
    const std::string fault = fault_of(path, real_directory);
    if (!fault.empty()) {
      files.left_out.push_back(cat(shown_path(path), ": ", fault, ", and is not copied"));
    } else if (fs::is_regular_file(path, error)) {
      files.names.push_back(name);
    }
  }
  return files;
}

}  // namespace minfer
