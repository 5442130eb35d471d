#include "loaders/safetensors.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "loaders/checksum.h"
#include "loaders/directory.h"
#include "loaders/hf_config.h"
#include "loaders/hf_weight_files.h"
#include "loaders/memory_budget.h"
#include "loaders/quantization_settings.h"
#include "loaders/quantized_checkpoint.h"
#include "loaders/small_files.h"
#include "loaders/strict_json.h"

namespace minfer {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr uint64_t kMaxIndexBytes = 64 << 20;
constexpr uint64_t kMaxInsideBytes = 64 << 20;
constexpr size_t kMaxIndexedTensors = 1 << 18;
constexpr size_t kMaxShards = 512;  // each keeps a descriptor open

// Shard names come from the index and must stay in its directory: a bare name, no path. Shards that
// are symbolic links are fine, as in the Hugging Face cache.
void check_shard_name(const std::string& name) {
  constexpr std::string_view kSuffix = ".safetensors";
  MINFER_REQUIRE(Input,
                 name.size() > kSuffix.size() && name.size() <= 255 && name.ends_with(kSuffix) &&
                     name.find_first_of(std::string_view("/\\\0", 3)) == name.npos,
                 "weight_map names the file ", shortened(name),
                 ", expected a bare file name ending in ", kSuffix);
}

// The shard of each tensor, by the index.
using WeightMap = std::map<std::string, std::string>;

WeightMap read_weight_map(const std::string& path, std::vector<std::string>& warnings) {
  const std::string text = read_whole_file(path, kMaxIndexBytes);
  return in_file(path, [&] {
    WeightMap shard_of;
    const auto take = [&](std::string&& tensor, json&& shard) {
      MINFER_REQUIRE(Input, shard.is_string(), "weight_map: ", shortened(tensor), " is ",
                     shard.type_name(), ", expected a file name");
      check_shard_name(shard.get_ref<std::string&>());
      MINFER_REQUIRE(Input, shard_of.size() < kMaxIndexedTensors, "names more than ",
                     kMaxIndexedTensors, " tensors");
      shard_of[std::move(tensor)] = std::move(shard.get_ref<std::string&>());
    };
    const json root = parse_python_json(text, fs::path(path).filename().string(), warnings,
                                        {{{"weight_map"}, take}});
    MINFER_REQUIRE(Input, root.is_object() && root.contains("weight_map"), "has no weight_map");
    const json& map = root["weight_map"];
    MINFER_REQUIRE(Input, map.is_object(), "weight_map is ", map.type_name(),
                   ", expected an object");
    return shard_of;
  });
}

}  // namespace

SafetensorsSource::SafetensorsSource() {
  format = "safetensors";
  key_style = KeyStyle::HuggingFace;
}

std::vector<std::string> SafetensorsSource::add_file(File file) {
  std::vector<std::string> names;
  in_file(file.path(), [&] {
    const SafetensorsHeader header = read_safetensors_header(file);
    n_file_bytes_ += file.size();
    MINFER_REQUIRE(Input, stored_.size() + header.records.size() <= max_tensors(n_file_bytes_),
                   "too many tensors: ", stored_.size() + header.records.size(), " in ",
                   n_file_bytes_, " bytes");
    for (const SafetensorsRecord& record : header.records) {
      add_record(record, header);
      names.push_back(record.name);
    }
  });
  files_.push_back(std::move(file));
  return names;
}

void SafetensorsSource::add_shards(const std::string& directory, const std::string& index_path) {
  const WeightMap shard_of = read_weight_map(index_path, warnings);
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : shard_of) shards.insert(shard);
  in_file(index_path, [&] {
    MINFER_REQUIRE(Input, shards.size() <= kMaxShards, "names ", shards.size(), " files, at most ",
                   kMaxShards, " are accepted");
  });
  for (const std::string& shard : shards) {
    const std::vector<std::string> names = add_file(File(fs::path(directory) / shard));
    in_file(index_path, [&] { check_tensors(names, shard, shard_of); });
  }
  warn_of_absent(index_path, shard_of);
  warn_of_other_files(directory, shards);
}

const SafetensorsSource::Stored* SafetensorsSource::find_stored(const std::string& name) const {
  const auto found = stored_index_.find(name);
  return found == stored_index_.end() ? nullptr : &stored_[found->second];
}

void SafetensorsSource::read_stored(const Stored& stored, void* to) const {
  read_stored(stored, 0, stored.n_bytes(), to);
}

void SafetensorsSource::read_stored(const Stored& stored, uint64_t begin, uint64_t n,
                                    void* to) const {
  MINFER_CHECK(begin <= stored.n_bytes() && n <= stored.n_bytes() - begin, "tensor ",
               stored.record.name, ": bytes [", begin, ", ", begin + n, ")");
  files_[stored.extent.file].read(stored.extent.begin + begin, to, n);
}

std::map<std::string, std::string> SafetensorsSource::files_inside() {
  std::map<std::string, std::string> inside;
  for (const char* name : kInsideFiles) {
    const std::string tensor = inside_tensor_name(name);
    const Stored* stored = find_stored(tensor);
    if (stored == nullptr || stored->record.type_name != "U8") continue;
    MINFER_REQUIRE(Input, stored->n_bytes() <= kMaxInsideBytes, "tensor ", tensor, ": has ",
                   stored->n_bytes(), " bytes, at most ", kMaxInsideBytes, " are accepted");
    inside[name].resize(stored->n_bytes());
    read_stored(*stored, inside[name].data());
    unusable.erase(tensor);
  }
  return inside;
}

int64_t SafetensorsSource::check_checksums() const {
  int64_t n_checked = 0;
  for (const Stored& stored : stored_) {
    if (stored.checksum.empty()) continue;
    const File& file = files_[stored.extent.file];
    Xxh3 checksum;
    file.read_pieces(stored.extent.begin, stored.n_bytes(),
                     [&](const char* bytes, size_t n) { checksum.update(bytes, n); });
    MINFER_REQUIRE(Input, checksum.hex() == stored.checksum, shown_path(file.path()), ": tensor ",
                   shortened(stored.record.name), ": XXH3 is ", checksum.hex(), ", the file has ",
                   shortened(stored.checksum));
    ++n_checked;
  }
  return n_checked;
}

void SafetensorsSource::add_record(const SafetensorsRecord& record,
                                   const SafetensorsHeader& header) {
  const Extent extent = {files_.size(), header.data_begin + record.begin};
  const bool is_new = stored_index_.emplace(record.name, stored_.size()).second;
  MINFER_REQUIRE(Input, is_new, "tensor ", shortened(record.name), ": is in another shard too");
  const auto checksum = header.metadata.find("xxh3." + record.name);
  stored_.push_back({record, extent, checksum == header.metadata.end() ? "" : checksum->second});
  if (!record.dtype) {
    unusable[record.name] = cat("has dtype ", record.type_name, ", supported: F32, F16 and BF16");
  } else if (record.dims.size() > Shape::kMaxRank) {
    unusable[record.name] =
        cat("has ", record.dims.size(), " dims, at most ", Shape::kMaxRank, " are supported");
  } else {
    Shape shape;
    shape.rank = static_cast<int>(record.dims.size());
    std::copy(record.dims.begin(), record.dims.end(), shape.dims.begin());
    add_tensor({record.name, *record.dtype, shape, stored_.back().n_bytes()}, extent);
  }
}

// The tensors of a shard against what the index says of them.
void SafetensorsSource::check_tensors(const std::vector<std::string>& names,
                                      const std::string& shard, const WeightMap& shard_of) {
  std::vector<std::string> unmapped;
  for (const std::string& name : names) {
    const auto mapped = shard_of.find(name);
    if (mapped == shard_of.end()) {
      unmapped.push_back(name);
    } else {
      MINFER_REQUIRE(Input, mapped->second == shard, "puts tensor ", shortened(name), " into ",
                     shortened(mapped->second), ", it is in ", shortened(shard));
    }
  }
  if (!unmapped.empty()) {
    warnings.push_back(cat(shortened(shard), ": ", unmapped.size(),
                           " tensors are not in the index, as ", shortened(unmapped[0])));
  }
}

// Published indexes name buffers that have been left out since; a weight that the model needs is
// refused by its own name.
void SafetensorsSource::warn_of_absent(const std::string& index_path, const WeightMap& shard_of) {
  int64_t n_absent = 0;
  std::string first;
  for (const auto& [tensor, shard] : shard_of) {
    if (find_stored(tensor) != nullptr) continue;
    if (n_absent++ == 0) first = cat(shortened(tensor), " (into ", shortened(shard), ")");
  }
  if (n_absent == 0) return;
  const std::string name = fs::path(index_path).filename();
  warnings.push_back(cat(shortened(name), ": puts ", n_absent,
                         " tensors into files that do not have them, as ", first));
}

void SafetensorsSource::warn_of_other_files(const std::string& directory,
                                            const std::set<std::string>& shards) {
  std::vector<std::string> names;
  try {
    names = names_in_directory(directory);
  } catch (const Error&) {  // a directory that cannot be listed has nothing to warn of
  }
  for (const std::string& name : names) {
    if (!name.ends_with(".safetensors") || shards.contains(name)) continue;
    warnings.push_back(cat(shortened(name), ": is not in the index and not read"));
  }
}

bool is_safetensors(const File& file) {
  char start[16];
  if (file.size() < sizeof start) return false;
  file.read(0, start, sizeof start);
  uint64_t header_bytes;
  std::memcpy(&header_bytes, start, sizeof header_bytes);
  const std::string_view text(start + 8, 8);
  const size_t first = text.find_first_not_of(" \t\r\n");
  return header_bytes <= file.size() - 8 && first != text.npos && text[first] == '{';
}

std::unique_ptr<TensorSource> open_safetensors(File file) {
  auto source = std::make_unique<SafetensorsSource>();
  const std::string path = file.path();
  source->add_file(std::move(file));
  return in_file(path, [&]() -> std::unique_ptr<TensorSource> {
    const std::map<std::string, std::string> inside = source->files_inside();
    const auto config = inside.find("config.json");
    if (config == inside.end()) return std::move(source);
    source->format += ", single file";
    source->metadata = parse_hf_config(config->second);
    settle_quantization_settings(*source, "");
    return join_packed_weights(std::move(source));
  });
}

std::unique_ptr<TensorSource> open_hf_directory(const std::string& path) {
  auto source = std::make_unique<SafetensorsSource>();
  source->metadata = read_hf_config(fs::path(path) / "config.json");
  const HfWeightFiles found = find_hf_weight_files(path);
  for (const std::string& file : found.files) source->add_file(File(file));
  if (!found.index.empty()) source->add_shards(path, found.index);
  const std::string settings = settle_quantization_settings(*source, path);
  return in_file(settings.empty() ? path : settings,
                 [&] { return join_packed_weights(std::move(source)); });
}

}  // namespace minfer
