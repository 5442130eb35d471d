#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>

namespace minfer {

inline constexpr const char* kSha256Sums = "SHA256SUMS";

// Checks the files of a directory against its SHA256SUMS, which has a line "<64 digits>  <name>",
// as sha256sum writes it, for every file beside it. Throws Input if a file is missing, is not
// listed or has another sum, or if the list itself is malformed.
//
//   progress  called with bytes done and in all
//   returns   the number of files; nothing if the directory has no SHA256SUMS
std::optional<int64_t> check_sha256_sums(const std::string& directory,
                                         const std::function<void(int64_t, int64_t)>& progress);

// The files that the list names; none if there is no list.
std::set<std::string> names_in_sha256_sums(const std::string& directory);

}  // namespace minfer
