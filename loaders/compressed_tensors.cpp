#include "loaders/compressed_tensors.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <compare>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "loaders/strict_json.h"

namespace minfer {
namespace {

using Json = nlohmann::ordered_json;
using Record = SafetensorsWriter::Record;

constexpr std::string_view kWeight = ".weight";
constexpr const char* kEmbedding = "model.embed_tokens";
constexpr const char* kOutput = "lm_head";
constexpr int64_t kWordBits = 32;

// "model.norm.weight" to "model.norm".
std::string module_of(const TensorEntry& tensor) {
  return tensor.name.substr(0, tensor.name.size() - kWeight.size());
}

int64_t bits_of(const TensorEntry& tensor) { return tensor.dtype == DType::U4 ? 4 : 8; }

int64_t words(int64_t n_codes, int64_t bits) { return ceil_div(n_codes * bits, kWordBits); }

Record record(const std::string& name, const char* type, int64_t element_bytes,
              const std::vector<int64_t>& dims) {
  int64_t n_bytes = element_bytes;
  for (int64_t dim : dims) n_bytes = checked_mul(n_bytes, dim);
  return {name, type, dims, static_cast<uint64_t>(n_bytes)};
}

// The integer zero-point of a group, back from its min = -scale * zero.
int zero_of(float scale, float min) { return scale == 0 ? 0 : int(std::lround(-min / scale)); }

// Zero-points of the rows, packed along them.
std::vector<uint32_t> pack_zeros(const QuantizedMatrix& rows) {
  const int64_t bits = rows.bits(), per_word = kWordBits / bits, n_groups = rows.n_groups();
  std::vector<uint32_t> packed(static_cast<size_t>(words(rows.out_dim(), bits) * n_groups));
  const auto* scales = rows.scales.as<const f16>();
  const auto* mins = rows.mins.as<const float>();
  for (int64_t row = 0; row < rows.out_dim(); ++row) {
    for (int64_t g = 0; g < n_groups; ++g) {
      const int64_t i = row * n_groups + g;
      const auto zero = static_cast<uint32_t>(zero_of(to_f32(scales[i]), mins[i]));
      packed[static_cast<size_t>(row / per_word * n_groups + g)] |= zero << (row % per_word * bits);
    }
  }
  return packed;
}

// The codes of each row, padded with zeros to whole words. U4 and U8 have the order of the format
// already.
std::vector<uint8_t> padded_codes(const QuantizedMatrix& rows) {
  const int64_t row_bytes = bytes_of(rows.codes.dtype, rows.in_dim());
  const int64_t padded_bytes = words(rows.in_dim(), rows.bits()) * kWordBits / 8;
  std::vector<uint8_t> bytes(static_cast<size_t>(rows.out_dim() * padded_bytes));
  const auto* from = static_cast<const uint8_t*>(rows.codes.data);
  for (int64_t row = 0; row < rows.out_dim(); ++row) {
    std::memcpy(bytes.data() + row * padded_bytes, from + row * row_bytes,
                static_cast<size_t>(row_bytes));
  }
  return bytes;
}

std::vector<uint8_t> signed_codes(const QuantizedMatrix& rows) {
  const auto* from = static_cast<const uint8_t*>(rows.codes.data);
  std::vector<uint8_t> bytes(from, from + rows.codes.n_elements());
  for (uint8_t& code : bytes) code ^= 0x80;
  return bytes;
}

// What tells one config group from another.
struct Scheme {
  int64_t bits, group;  // 0: row
  bool asymmetric, packed;

  auto operator<=>(const Scheme&) const = default;
  const char* format() const { return packed ? "pack-quantized" : "int-quantized"; }
};

Json config_group(const Scheme& scheme, const std::vector<std::string>& targets) {
  return {{"targets", targets},
          {"weights",
           {{"num_bits", scheme.bits},
            {"type", "int"},
            {"symmetric", !scheme.asymmetric},
            {"strategy", scheme.group == 0 ? "channel" : "group"},
            {"group_size", scheme.group == 0 ? Json() : Json(scheme.group)},
            {"dynamic", false}}},
          {"input_activations", nullptr},
          {"output_activations", nullptr},
          {"format", scheme.format()}};
}

// The format of them all, or that there are several.
std::string common_format(const Json& groups) {
  const Json format = groups.begin().value()["format"];
  const bool all_same = std::ranges::all_of(
      groups, [&format](const Json& group) { return group["format"] == format; });
  return all_same ? format.get<std::string>() : "mixed-precision";
}

}  // namespace

CompressedTensorsLayout::CompressedTensorsLayout(const std::vector<TensorEntry>& tensors)
    : tensors_(tensors) {
  for (const TensorEntry& tensor : tensors) {
    if (tensor.quant && bits_of(tensor) != 8) all_8_bits_ = false;
  }
}

bool CompressedTensorsLayout::is_packed(const TensorEntry& tensor) const {
  if (!tensor.quant) return false;
  return bits_of(tensor) != 8 || (!all_8_bits_ && module_of(tensor) != kEmbedding);
}

std::vector<Record> CompressedTensorsLayout::records(const TensorEntry& tensor) const {
  const Shape& shape = tensor.shape;
  if (!tensor.quant) {
    std::vector<int64_t> dims(shape.dims.begin(), shape.dims.begin() + shape.rank);
    const std::string type(info(tensor.dtype).name);
    return {{tensor.name, type, dims, static_cast<uint64_t>(bytes_of(tensor.dtype, shape))}};
  }
  const int64_t out = shape[0], in = shape[1], bits = bits_of(tensor);
  const int64_t n_groups = in / tensor.quant->group;
  const Record scales = record(tensor.name + "_scale", "F16", 2, {out, n_groups});
  if (!is_packed(tensor)) return {record(tensor.name, "I8", 1, {out, in}), scales};
  std::vector<Record> all = {record(tensor.name + "_packed", "I32", 4, {out, words(in, bits)}),
                             scales};
  if (tensor.quant->asymmetric) {
    all.push_back(record(tensor.name + "_zero_point", "I32", 4, {words(out, bits), n_groups}));
  }
  all.push_back(record(tensor.name + "_shape", "I64", 8, {2}));
  return all;
}

int64_t CompressedTensorsLayout::stored_bytes(const TensorEntry& tensor) const {
  int64_t n_bytes = 0;
  for (const Record& record : records(tensor)) {
    n_bytes = checked_add(n_bytes, narrow<int64_t>(record.n_bytes));
  }
  return n_bytes;
}

void CompressedTensorsLayout::append(SafetensorsWriter& file, const TensorEntry& tensor,
                                     int64_t begin, const QuantizedMatrix& rows) const {
  const auto append_bytes = [&file](const std::string& name, const auto& values) {
    file.append(name, values.data(), values.size() * sizeof values[0]);
  };
  file.append(tensor.name + "_scale", rows.scales.data,
              static_cast<uint64_t>(rows.scales.n_bytes()));
  if (!is_packed(tensor)) return append_bytes(tensor.name, signed_codes(rows));
  append_bytes(tensor.name + "_packed", padded_codes(rows));
  if (tensor.quant->asymmetric) append_bytes(tensor.name + "_zero_point", pack_zeros(rows));
  if (begin == 0) {
    append_bytes(tensor.name + "_shape", std::array{tensor.shape[0], tensor.shape[1]});
  }
}

// The scheme that most linear layers have is said of their class, the others name their modules and
// come first: the first group that fits a module holds.
std::string CompressedTensorsLayout::with_quantization_config(const std::string& config,
                                                              bool tied) const {
  std::vector<std::string> told;  // when the model was opened
  Json root = Json::parse(parse_python_json(config, "config.json", told).dump());
  // What the tensors say, which readers that go by the flag have to hear.
  if (tied || root.contains("tie_word_embeddings")) root["tie_word_embeddings"] = tied;
  std::map<Scheme, std::vector<std::string>> tables, linears;
  std::vector<std::string> ignore;
  if (tied) ignore.push_back(kOutput);
  for (const TensorEntry& tensor : tensors_) {
    const std::string module = module_of(tensor);
    const bool is_table = module == kEmbedding;
    if (tensor.quant) {
      const int64_t in_dim = tensor.shape[1], group = tensor.quant->group;
      const Scheme scheme = {bits_of(tensor), group == in_dim ? 0 : group, tensor.quant->asymmetric,
                             is_packed(tensor)};
      (is_table ? tables : linears)[scheme].push_back(module);
    } else if (tensor.shape.rank == 2 && !is_table) {
      ignore.push_back(module);
    }
  }
  if (tables.empty() && linears.empty()) return root.dump(2) + '\n';

  // Readers round the scales to the type of the model; bf16 would take bits from f16's.
  for (const char* key : {"torch_dtype", "dtype"}) {
    if (root.contains(key) && root[key] == "bfloat16") root[key] = "float16";
  }
  Json groups = Json::object();
  const auto add_group = [&groups](const Scheme& scheme, const std::vector<std::string>& targets) {
    groups[cat("group_", groups.size())] = config_group(scheme, targets);
  };
  for (const auto& [scheme, modules] : tables) add_group(scheme, modules);
  const auto most = std::ranges::max_element(
      linears, {}, [](const auto& linear) { return linear.second.size(); });
  for (const auto& [scheme, modules] : linears) {
    if (scheme != most->first) add_group(scheme, modules);
  }
  if (most != linears.end()) add_group(most->first, {"Linear"});
  root["quantization_config"] = {{"quant_method", "compressed-tensors"},
                                 {"format", common_format(groups)},
                                 {"quantization_status", "compressed"},
                                 {"config_groups", groups},
                                 {"ignore", ignore},
                                 {"kv_cache_scheme", nullptr},
                                 {"global_compression_ratio", nullptr}};
  return root.dump(2) + '\n';
}

}  // namespace minfer
