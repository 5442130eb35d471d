#include "loaders/quantization_settings.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "loaders/hf_config.h"

namespace minfer {
namespace {

namespace fs = std::filesystem;

const std::string kSection = "quantization_config";

// Copies what is below a prefix ("" for all) of `from`.
void adopt(Metadata& to, const Metadata& from, const std::string& prefix) {
  Metadata found;  // `from` may be `to`
  for (const auto& [key, value] : from.all()) {
    if (key.starts_with(prefix)) found.set(key.substr(prefix.size()), value);
  }
  for (const auto& [key, value] : found.all()) to.set(cat(kSection, ".", key), value);
}

void set_method(Metadata& metadata, const std::string& method) {
  const std::string key = kSection + ".quant_method";
  if (!metadata.has(key)) metadata.set(key, method);
}

bool has_packed_weights(const SafetensorsSource& source) {
  return std::ranges::any_of(source.all_stored(), [](const SafetensorsSource::Stored& stored) {
    return stored.record.name.ends_with(".qweight");
  });
}

}  // namespace

std::string settle_quantization_settings(SafetensorsSource& source, const std::string& directory) {
  Metadata& metadata = source.metadata;
  if (names_below(metadata, kSection).empty() &&
      !names_below(metadata, "compression_config").empty()) {
    adopt(metadata, metadata, "compression_config.");
  }
  if (!names_below(metadata, kSection).empty()) {
    if (!names_below(metadata, kSection + ".config_groups").empty()) {
      set_method(metadata, "compressed-tensors");  // as its package takes it
    }
    return "";
  }
  if (directory.empty() || !has_packed_weights(source)) return "";
  for (const char* name : {"quantize_config.json", "quant_config.json"}) {
    const std::string path = fs::path(directory) / name;
    if (!path_exists(path)) continue;
    const Metadata settings = read_hf_config(path);
    adopt(metadata, settings, "");
    const bool is_awq = settings.has("w_bit") || settings.has("zero_point");
    set_method(metadata, is_awq ? "awq" : "gptq");
    return path;
  }
  return "";
}

}  // namespace minfer
