#include "loaders/safetensors_header.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "kernels/base/math.h"
#include "loaders/byte_reader.h"
#include "loaders/memory_budget.h"
#include "loaders/strict_json.h"

namespace minfer {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // of the format
constexpr size_t kMaxRank = 8;

struct SafetensorsType {
  std::string_view name;
  uint64_t bits;
  std::optional<DType> dtype = {};
};

constexpr SafetensorsType kTypes[] = {
    {"F32", 32, DType::F32},
    {"F16", 16, DType::F16},
    {"BF16", 16, DType::BF16},
    {"F64", 64},
    {"I64", 64},
    {"I32", 32},
    {"I16", 16},
    {"I8", 8},
    {"U64", 64},
    {"U32", 32},
    {"U16", 16},
    {"U8", 8},
    {"BOOL", 8},
    {"C64", 64},
    {"F8_E4M3", 8},
    {"F8_E5M2", 8},
    {"F8_E8M0", 8},
    {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8},
    {"F6_E2M3", 6},
    {"F6_E3M2", 6},
    {"F4", 4},
};

const SafetensorsType& type_of(const std::string& name) {
  const auto found =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](auto& t) { return t.name == name; });
  MINFER_REQUIRE(Input, found != std::end(kTypes), "dtype ", shortened(name), " is not known");
  return *found;
}

// Dims or offsets. The conversion of the library would turn -2 and 1.5 into
// something else without a word.
std::vector<int64_t> sizes_from(const json& value, std::string_view field) {
  MINFER_REQUIRE(Input, value.is_array(), field, " is ", value.type_name(), ", expected an array");
  std::vector<int64_t> sizes;
  for (const json& size : value) {
    MINFER_REQUIRE(Input, size.is_number_unsigned() && std::in_range<int64_t>(size.get<uint64_t>()),
                   field, " has ", shortened(size.dump()),
                   ", expected an integer from 0 to 2^63-1");
    sizes.push_back(size.get<int64_t>());
  }
  return sizes;
}

// Bytes of a tensor; a dim of 0 hides no overflow.
uint64_t bytes_of(const SafetensorsType& type, const std::vector<int64_t>& dims) {
  uint64_t bits = type.bits;
  for (const int64_t dim : dims) {
    if (dim > 0) bits = checked_mul(bits, static_cast<uint64_t>(dim));
  }
  if (std::find(dims.begin(), dims.end(), 0) != dims.end()) return 0;
  MINFER_REQUIRE(Input, bits % 8 == 0, "has ", bits, " bits, expected whole bytes");
  return bits / 8;
}

SafetensorsRecord parse_record(const std::string& name, const json& value) {
  MINFER_REQUIRE(Input, value.is_object(), "is ", value.type_name(), ", expected an object");
  for (const char* field : {"dtype", "shape", "data_offsets"}) {
    MINFER_REQUIRE(Input, value.contains(field), "has no ", field);
  }
  MINFER_REQUIRE(Input, value.size() == 3, "has ", value.size(),
                 " fields, expected dtype, shape and data_offsets alone");
  MINFER_REQUIRE(Input, value["dtype"].is_string(), "dtype is ", value["dtype"].type_name(),
                 ", expected text");
  SafetensorsRecord record;
  record.name = name;
  record.type_name = value["dtype"].get<std::string>();
  const SafetensorsType& type = type_of(record.type_name);
  record.dtype = type.dtype;
  record.dims = sizes_from(value["shape"], "shape");
  MINFER_REQUIRE(Input, record.dims.size() <= kMaxRank, "has ", record.dims.size(),
                 " dims, at most ", kMaxRank, " are accepted");

  const std::vector<int64_t> offsets = sizes_from(value["data_offsets"], "data_offsets");
  MINFER_REQUIRE(Input, offsets.size() == 2, "data_offsets has ", offsets.size(),
                 " values, expected 2");
  record.begin = static_cast<uint64_t>(offsets[0]);
  record.end = static_cast<uint64_t>(offsets[1]);
  MINFER_REQUIRE(Input, record.begin <= record.end, "data_offsets are ", record.begin, " and ",
                 record.end, ", expected begin <= end");
  const uint64_t n_bytes = bytes_of(type, record.dims);
  MINFER_REQUIRE(Input, record.end - record.begin == n_bytes, "data_offsets span ",
                 record.end - record.begin, " bytes, dtype and shape need ", n_bytes);
  return record;
}

// The tensors have to lie one after the other, from the first byte of the data to the last.
void check_extents(std::vector<SafetensorsRecord>& records, uint64_t data_bytes) {
  std::sort(records.begin(), records.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  uint64_t end = 0;
  for (const SafetensorsRecord& record : records) {
    MINFER_REQUIRE(Input, record.begin == end, "tensor ", shortened(record.name), ": begins at ",
                   record.begin, " in the data, expected ", end, " where the one before it ends");
    end = record.end;
  }
  MINFER_REQUIRE(Input, end == data_bytes, "the tensors end at ", end,
                 " in the data, the data of the file at ", data_bytes);
}

// Takes the header entry by entry: as a document it would be eight times as large.
class HeaderReader {
 public:
  explicit HeaderReader(uint64_t file_bytes) : max_tensors_(max_tensors(file_bytes)) {}

  SafetensorsHeader read(std::string_view text) {
    const json root = parse_strict_json(
        text, {{{}, [this](std::string&& name, json&& value) { take(name, value); }}});
    MINFER_REQUIRE(Input, root.is_object(), "the header is ", root.type_name(),
                   ", expected an object");
    return std::move(header_);
  }

 private:
  void take(const std::string& name, const json& value) {
    MINFER_REQUIRE(Input, names_.insert(name).second, "malformed JSON: key \"", shortened(name),
                   "\" twice");
    if (name == kMetadata) return take_metadata(value);
    MINFER_REQUIRE(Input, names_.size() <= max_tensors_, "more than ", max_tensors_,
                   " tensors, too many for the size of the file");
    try {
      header_.records.push_back(parse_record(name, value));
    } catch (const Error& e) {
      throw e.in(cat("tensor ", shortened(name)));
    }
  }

  void take_metadata(const json& metadata) {
    MINFER_REQUIRE(Input, metadata.is_object(), kMetadata, " is ", metadata.type_name(),
                   ", expected an object");
    for (const auto& [key, value] : metadata.items()) {
      MINFER_REQUIRE(Input, value.is_string(), kMetadata, ": ", shortened(key), " is ",
                     value.type_name(), ", expected text");
      header_.metadata[key] = value.get<std::string>();
    }
  }

  static constexpr std::string_view kMetadata = "__metadata__";
  SafetensorsHeader header_;
  std::unordered_set<std::string> names_;
  uint64_t max_tensors_;
};

}  // namespace

SafetensorsHeader read_safetensors_header(const File& file) {
  ByteReader reader(file);
  const auto header_bytes = reader.read<uint64_t>();
  MINFER_REQUIRE(Input, header_bytes <= std::min(kMaxHeaderBytes, reader.left()), "a header of ",
                 header_bytes, " bytes, ", reader.left(), " are left in the file and ",
                 kMaxHeaderBytes, " are allowed");
  HeaderReader header_reader(file.size());
  SafetensorsHeader header = header_reader.read(reader.text(header_bytes));
  header.data_begin = reader.position();
  check_extents(header.records, reader.left());
  return header;
}

}  // namespace minfer
