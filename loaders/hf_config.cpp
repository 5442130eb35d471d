#include "loaders/hf_config.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "loaders/file.h"
#include "loaders/formats.h"
#include "loaders/strict_json.h"

namespace minfer {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxConfigBytes = 16 << 20;
// Joined keys repeat their prefix, so that a small file could ask for much memory.
constexpr size_t kMaxConfigKeyBytes = 256;
constexpr size_t kMaxConfigKeys = 1 << 16;

template <typename Predicate>
bool all_are(const json& array, Predicate predicate) {
  return std::all_of(array.begin(), array.end(), predicate);
}

bool fits_int64(const json& value) {
  return value.is_number_integer() &&
         (!value.is_number_unsigned() || std::in_range<int64_t>(value.get<uint64_t>()));
}

// One value of Metadata, or false where it takes several keys.
bool to_value(const json& value, Metadata::Value& out) {
  if (value.is_boolean()) {
    out = value.get<bool>();
  } else if (value.is_number_unsigned()) {
    out = value.get<uint64_t>();
  } else if (value.is_number_integer()) {
    out = value.get<int64_t>();
  } else if (value.is_number_float()) {
    out = value.get<double>();
  } else if (value.is_string()) {
    out = value.get<std::string>();
  } else if (!value.is_array()) {
    return false;
  } else if (all_are(value, fits_int64)) {
    out = value.get<std::vector<int64_t>>();
  } else if (all_are(value, [](const json& v) { return v.is_number(); })) {
    out = value.get<std::vector<double>>();
  } else if (all_are(value, [](const json& v) { return v.is_string(); })) {
    out = value.get<std::vector<std::string>>();
  } else if (all_are(value, [](const json& v) { return v.is_boolean(); })) {
    out = value.get<std::vector<bool>>();
  } else {
    return false;
  }
  return true;
}

// Recursion is bounded by the depth that parse_python_json accepts.
void flatten(const std::string& key, const json& value, Metadata& metadata) {
  Metadata::Value typed;
  MINFER_REQUIRE(Input, key.size() <= kMaxConfigKeyBytes, "key ", shortened(key), " has ",
                 key.size(), " bytes, at most ", kMaxConfigKeyBytes, " are accepted");
  const bool is_null = value.is_null();
  if (is_null || to_value(value, typed)) {
    MINFER_REQUIRE(Input, !metadata.has(key) && !metadata.nulls.contains(key), "key ",
                   shortened(key), " is there twice");
    MINFER_REQUIRE(Input, metadata.all().size() + metadata.nulls.size() < kMaxConfigKeys,
                   "has more than ", kMaxConfigKeys, " keys");
    if (is_null) {
      metadata.nulls.insert(key);
    } else {
      metadata.set(key, std::move(typed));
    }
    return;
  }
  for (const auto& [name, member] : value.items()) {  // of an array: "0", "1", ...
    flatten(key.empty() ? name : cat(key, ".", name), member, metadata);
  }
}

Metadata parse(std::string_view text, std::string_view name) {
  Metadata metadata;
  const json root = parse_python_json(text, name, metadata.warnings);
  MINFER_REQUIRE(Input, root.is_object(), "is ", root.type_name(), ", expected an object");
  flatten("", root, metadata);
  return metadata;
}

}  // namespace

Metadata parse_hf_config(std::string_view text) { return parse(text, "config.json"); }

Metadata read_hf_config(const std::string& path) {
  const std::string text = read_whole_file(path, kMaxConfigBytes);
  return in_file(path,
                 [&] { return parse(text, shown_path(std::filesystem::path(path).filename())); });
}

}  // namespace minfer
