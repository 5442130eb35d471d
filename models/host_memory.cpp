#include "models/host_memory.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

#include "kernels/backend.h"
#include "kernels/base/bytes_text.h"
#include "kernels/base/cgroup.h"

namespace minfer {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

std::optional<int64_t> to_integer(const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

// The number behind `key` in a file of "key number" lines; with an empty key the file's first word.
std::optional<int64_t> number_in(const std::string& path, const std::string& key) {
  std::ifstream in(path);
  std::string word;
  while (in >> word) {
    if (key.empty()) return to_integer(word);
    if (word == key && in >> word) return to_integer(word);
  }
  return std::nullopt;
}

struct CgroupFiles {
  const char *limit, *usage, *cache_key;
};
constexpr CgroupFiles kVersion1 = {"/memory.limit_in_bytes", "/memory.usage_in_bytes",
                                   "total_inactive_file"};
constexpr CgroupFiles kVersion2 = {"/memory.max", "/memory.current", "inactive_file"};

// File cache counts as used but is given up under pressure.
int64_t left_in_cgroup(const std::string& dir, const CgroupFiles& files) {
  const auto limit = number_in(dir + files.limit, ""), used = number_in(dir + files.usage, "");
  if (!limit || !used) return kUnlimited;  // "max" is no number
  const int64_t cache = number_in(dir + "/memory.stat", files.cache_key).value_or(0);
  return std::max<int64_t>(0, *limit - *used + std::min(cache, *used));
}

int64_t left_in_cgroups() {
  int64_t left = kUnlimited;
  for (const Cgroup& group : cgroups_of("memory")) {
    left = std::min(left, left_in_cgroup(group.dir, group.version2 ? kVersion2 : kVersion1));
  }
  return left;
}

// A backend that keeps(in_dim, group) keeps all else of the format too.
std::optional<GroupFormat> groups_kept_by(bool (*keeps)(int64_t, int64_t),
                                          const TensorEntry& entry) {
  const std::optional<GroupFormat> format = stored_matrix(entry).groups;
  return format && keeps(entry.shape.last(), format->group) ? format : std::nullopt;
}

}  // namespace

int64_t available_host_bytes() {
  const auto kib = number_in("/proc/meminfo", "MemAvailable:");
  return std::min(kib ? *kib * 1024 : kUnlimited, left_in_cgroups());
}

StoredMatrix stored_matrix(const TensorEntry& entry) {
  const int64_t n = entry.shape.n_elements(), in_dim = n == 0 ? 0 : entry.shape.last();
  StoredMatrix matrix{.out_dim = in_dim == 0 ? 0 : n / in_dim, .in_dim = in_dim};
  if (is_float(entry.dtype)) {
    matrix.dtype = entry.dtype;
  } else if (entry.quant) {
    // A min that an integer zero-point makes needs F32, and its scale goes with it.
    matrix.groups = {.bits = entry.dtype == DType::U4 ? 4 : 8,
                     .group = entry.quant->group,
                     .has_mins = entry.quant->asymmetric,
                     .scales = entry.quant->asymmetric ? DType::F32 : entry.quant->scales};
  } else {
    matrix.groups = group_format(entry.dtype);
  }
  return matrix;
}

std::optional<GroupFormat> kept_groups(const TensorEntry& entry) {
  return groups_kept_by(cpu_keeps_groups, entry);
}

std::optional<GroupFormat> card_kept_groups(const TensorEntry& entry) {
  if (!groups_kept_by(cuda_keeps_groups, entry)) return std::nullopt;
  return cuda_groups(stored_matrix(entry));
}

int64_t stored_bytes(const StoredMatrix& matrix) {
  const int64_t n = checked_mul(matrix.out_dim, matrix.in_dim);
  if (!matrix.groups) return bytes_of(matrix.dtype, n);
  const GroupFormat& format = *matrix.groups;
  return checked_add(n / 8 * format.bits, scale_bytes(format, n));
}

int64_t weight_memory_bytes(const TensorEntry& entry) {
  StoredMatrix matrix = stored_matrix(entry);
  if (matrix.groups && !kept_groups(entry)) {
    matrix.groups.reset();
    matrix.dtype = DType::F32;
  }
  return stored_bytes(matrix);
}

int64_t card_memory_bytes(const TensorEntry& entry) {
  return cuda_packed_bytes(stored_matrix(entry)).sum();
}

void require_host_memory(int64_t bytes, std::string_view purpose) {
  const int64_t available = available_host_bytes();
  MINFER_REQUIRE(Memory, bytes <= available, purpose, " needs ", bytes_text(bytes), " of memory, ",
                 bytes_text(available), " are available");
}

}  // namespace minfer
