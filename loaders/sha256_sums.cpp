#include "loaders/sha256_sums.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <string_view>
#include <system_error>
#include <vector>

#include "kernels/base/math.h"
#include "loaders/checksum.h"
#include "loaders/directory.h"
#include "loaders/file.h"
#include "loaders/formats.h"

namespace minfer {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxSumsBytes = 1 << 20;
constexpr size_t kDigits = 64;

// Returns the sums by file name. It accepts one spelling only, so that every flipped bit is found.
std::map<std::string, std::string> parse_sums(std::string_view text) {
  MINFER_REQUIRE(Input, text.ends_with('\n'), "does not end with a line");
  std::map<std::string, std::string> sums;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(line.size() + 1);
    const std::string sum(line.substr(0, kDigits));
    const bool is_sum = sum.size() == kDigits &&
                        sum.find_first_not_of("0123456789abcdef") == std::string::npos &&
                        line.substr(kDigits).starts_with("  ");
    const std::string name(is_sum ? line.substr(kDigits + 2) : "");
    const bool is_name = !name.empty() && name != "." && name != ".." && name != kSha256Sums &&
                         name.find_first_of(std::string_view("/\0", 2)) == name.npos;
    MINFER_REQUIRE(Input, is_name, "has the line \"", shortened(line),
                   "\", expected 64 digits, two blanks and the name of a file");
    MINFER_REQUIRE(Input, sums.emplace(name, sum).second, "lists ", shortened(name), " twice");
  }
  return sums;
}

void require_all_listed(const std::string& directory,
                        const std::map<std::string, std::string>& sums) {
  std::vector<std::string> others;
  for (const std::string& name : names_in_directory(directory)) {
    std::error_code ignored;
    const bool is_folder = fs::is_directory(fs::path(directory) / name, ignored);
    if (!is_folder && name != kSha256Sums && !sums.contains(name)) others.push_back(name);
  }
  MINFER_REQUIRE(Input, others.empty(), shown_path(directory), ": the file ",
                 shortened(others.front()), " is not in ", kSha256Sums);
}

std::map<std::string, std::string> read_sums(const std::string& list) {
  const std::string text = read_whole_file(list, kMaxSumsBytes);
  return in_file(list, [&] { return parse_sums(text); });
}

}  // namespace

std::set<std::string> names_in_sha256_sums(const std::string& directory) {
  const std::string list = fs::path(directory) / kSha256Sums;
  std::set<std::string> names;
  if (!path_exists(list)) return names;
  for (const auto& [name, sum] : read_sums(list)) names.insert(name);
  return names;
}

std::optional<int64_t> check_sha256_sums(const std::string& directory,
                                         const std::function<void(int64_t, int64_t)>& progress) {
  const std::string list = fs::path(directory) / kSha256Sums;
  if (!path_exists(list)) return std::nullopt;
  const auto sums = read_sums(list);
  require_all_listed(directory, sums);

  int64_t total = 0, done = 0;
  for (const auto& [name, sum] : sums) {
    total = checked_add(total, narrow<int64_t>(File(fs::path(directory) / name).size()));
  }
  for (const auto& [name, sum] : sums) {
    const File file(fs::path(directory) / name);
    Sha256 hash;
    file.read_pieces(0, file.size(), [&](const char* bytes, size_t n) {
      hash.update(bytes, n);
      done += narrow<int64_t>(n);
      progress(done, total);
    });
    const std::string found = hash.hex();
    MINFER_REQUIRE(Input, found == sum, shown_path(file.path()), ": SHA-256 is ", found, ", ",
                   kSha256Sums, " has ", sum);
  }
  return static_cast<int64_t>(sums.size());
}

}  // namespace minfer
