#include "loaders/gguf_part.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

#include "kernels/base/utf8.h"
#include "loaders/byte_reader.h"
#include "loaders/memory_budget.h"

namespace minfer {
namespace {

constexpr uint64_t kMaxKeys = 1 << 16;
constexpr uint64_t kMaxArrayLength = 1 << 24;  // no vocabulary is longer
constexpr uint64_t kMaxKeyBytes = 65535;
constexpr uint64_t kMaxTensorNameBytes = 64;
constexpr uint64_t kMaxAlignment = 65536;
constexpr uint64_t kPairBytes = 160;  // of a key in Metadata, with the allocator's share

struct GgmlType {
  std::string_view name;  // empty: no such type, or one that was removed
  std::optional<DType> dtype = {};
  // Of the types that minfer does not have; 0: not known here.
  int64_t block_elements = 0, block_bytes = 0;
};

// Indexed by the number in the file.
constexpr GgmlType kGgmlTypes[] = {
    {"F32", DType::F32},
    {"F16", DType::F16},
    {"Q4_0", DType::Q4_0},
    {"Q4_1", DType::Q4_1},
    {""},
    {""},
    {"Q5_0", DType::Q5_0},
    {"Q5_1", DType::Q5_1},
    {"Q8_0", DType::Q8_0},
    {"Q8_1", {}, 32, 36},
    {"Q2_K", DType::Q2_K},
    {"Q3_K", DType::Q3_K},
    {"Q4_K", DType::Q4_K},
    {"Q5_K", DType::Q5_K},
    {"Q6_K", DType::Q6_K},
    {"Q8_K", {}, 256, 292},
    {"IQ2_XXS", {}, 256, 66},
    {"IQ2_XS", {}, 256, 74},
    {"IQ3_XXS", {}, 256, 98},
    {"IQ1_S", {}, 256, 50},
    {"IQ4_NL", DType::IQ4_NL},
    {"IQ3_S", {}, 256, 110},
    {"IQ2_S", {}, 256, 82},
    {"IQ4_XS", DType::IQ4_XS},
    {"I8", {}, 1, 1},
    {"I16", {}, 1, 2},
    {"I32", {}, 1, 4},
    {"I64", {}, 1, 8},
    {"F64", {}, 1, 8},
    {"IQ1_M", {}, 256, 56},
    {"BF16", DType::BF16},
    {""},
    {""},
    {""},
    {"TQ1_0", {}, 256, 54},
    {"TQ2_0", {}, 256, 66},
    {""},
    {""},
    {""},
    {"MXFP4", DType::MXFP4},
    {"NVFP4"},
    {"Q1_0"},
    {"Q2_0"},
};

GgmlType ggml_type(uint32_t number) {
  return number < std::size(kGgmlTypes) ? kGgmlTypes[number] : GgmlType{""};
}

// Why a tensor of the type cannot be delivered.
std::string unsupported_text(uint32_t number) {
  const GgmlType type = ggml_type(number);
  std::string supported;
  for (const GgmlType& other : kGgmlTypes) {
    if (other.dtype) supported += cat(supported.empty() ? "" : ", ", other.name);
  }
  const std::string name = type.name.empty() ? cat("number ", number) : std::string(type.name);
  return cat("has type ", name, ", supported: ", supported);
}

// Calls f.operator()<T>() with the C++ type of a value; not for arrays.
template <typename F>
auto visit_value_type(GgufValueType type, F&& f) {
  switch (type) {
    case GgufValueType::U8:
      return f.template operator()<uint8_t>();
    case GgufValueType::I8:
      return f.template operator()<int8_t>();
    case GgufValueType::U16:
      return f.template operator()<uint16_t>();
    case GgufValueType::I16:
      return f.template operator()<int16_t>();
    case GgufValueType::U32:
      return f.template operator()<uint32_t>();
    case GgufValueType::I32:
      return f.template operator()<int32_t>();
    case GgufValueType::F32:
      return f.template operator()<float>();
    case GgufValueType::Bool:
      return f.template operator()<bool>();
    case GgufValueType::Text:
      return f.template operator()<std::string>();
    case GgufValueType::U64:
      return f.template operator()<uint64_t>();
    case GgufValueType::I64:
      return f.template operator()<int64_t>();
    case GgufValueType::F64:
      return f.template operator()<double>();
    case GgufValueType::Array:
      throw Error(ErrorKind::Input, "an array of arrays is not supported");
  }
  throw Error(ErrorKind::Input, cat("value type ", uint32_t(type), ", expected 0 to 12"));
}

std::string read_text(ByteReader& reader) { return reader.text(reader.read<uint64_t>()); }

template <typename T>
T read_value(ByteReader& reader) {
  if constexpr (std::is_same_v<T, std::string>) {
    return read_text(reader);
  } else if constexpr (std::is_same_v<T, bool>) {
    const auto byte = reader.read<uint8_t>();
    MINFER_REQUIRE(Input, byte <= 1, "byte ", reader.position() - 1, ": a boolean is ", int{byte});
    return byte == 1;
  } else {
    return reader.read<T>();
  }
}

Metadata::Value read_array(ByteReader& reader, MemoryBudget& budget) {
  const auto type = static_cast<GgufValueType>(reader.read<uint32_t>());
  const auto length = reader.read<uint64_t>();
  return visit_value_type(type, [&]<typename T>() -> Metadata::Value {
    using Element =
        std::conditional_t<std::is_same_v<T, bool> || std::is_same_v<T, std::string>, T,
                           std::conditional_t<std::is_floating_point_v<T>, double, int64_t>>;
    constexpr uint64_t kLeastBytes = std::is_same_v<T, std::string> ? 8 : sizeof(T);
    MINFER_REQUIRE(Input, length <= std::min(kMaxArrayLength, reader.left() / kLeastBytes), "byte ",
                   reader.position(), ": an array of ", length, " values with ", reader.left(),
                   " bytes left; at most ", kMaxArrayLength, " are accepted");
    budget.spend(length * sizeof(Element));
    std::vector<Element> values;
    values.reserve(length);
    for (uint64_t i = 0; i < length; ++i) {
      if constexpr (std::is_same_v<T, uint64_t>) {
        const auto value = reader.read<T>();
        MINFER_REQUIRE(Input, std::in_range<int64_t>(value), "byte ", reader.position() - 8, ": ",
                       value, " in an array of integers");
        values.push_back(static_cast<int64_t>(value));
      } else {
        values.push_back(read_value<T>(reader));
        if constexpr (std::is_same_v<T, std::string>) budget.spend_text(values.back().size());
      }
    }
    return values;
  });
}

Metadata::Value read_scalar(ByteReader& reader, GgufValueType type) {
  return visit_value_type(type, [&]<typename T>() -> Metadata::Value {
    if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, std::string>) {
      return read_value<T>(reader);
    } else if constexpr (std::is_floating_point_v<T>) {
      return double{reader.read<T>()};
    } else if constexpr (std::is_unsigned_v<T>) {
      return uint64_t{reader.read<T>()};
    } else {
      return int64_t{reader.read<T>()};
    }
  });
}

void read_pair(ByteReader& reader, Metadata& metadata, MemoryBudget& budget) {
  const uint64_t begin = reader.position();
  const auto key_bytes = reader.read<uint64_t>();
  MINFER_REQUIRE(Input, key_bytes >= 1 && key_bytes <= kMaxKeyBytes, "byte ", begin, ": a key of ",
                 key_bytes, " bytes, expected 1 to ", kMaxKeyBytes);
  const std::string key = reader.text(key_bytes);
  MINFER_REQUIRE(Input, is_utf8(key), "byte ", begin, ": key ", shortened(key), " is not UTF-8");
  MINFER_REQUIRE(Input, !metadata.has(key), "byte ", begin, ": key ", shortened(key),
                 " is there twice");
  try {
    const auto type = static_cast<GgufValueType>(reader.read<uint32_t>());
    MINFER_REQUIRE(Input, key != "general.alignment" || type == GgufValueType::U32, "value type ",
                   uint32_t(type), ", expected ", uint32_t(GgufValueType::U32), " (u32)");
    budget.spend(kPairBytes);
    budget.spend_text(key.size());
    metadata.set(
        key, type == GgufValueType::Array ? read_array(reader, budget) : read_scalar(reader, type));
  } catch (const Error& e) {
    throw e.in(cat("key ", shortened(key)));
  }
}

// Dims as they are in the file, innermost first, to a shape.
Shape read_shape(ByteReader& reader) {
  const auto rank = reader.read<uint32_t>();
  MINFER_REQUIRE(Input, rank >= 1 && rank <= Shape::kMaxRank, "has ", rank, " dims, expected 1 to ",
                 Shape::kMaxRank);
  Shape shape;
  shape.rank = static_cast<int>(rank);
  for (size_t i = rank; i-- > 0;) {
    const auto dim = reader.read<uint64_t>();
    MINFER_REQUIRE(Input, dim >= 1 && std::in_range<int64_t>(dim), "has a dim of ", dim);
    shape.dims[i] = static_cast<int64_t>(dim);
  }
  return shape;
}

// The type of a record whose shape is known, and its bytes.
void read_type(ByteReader& reader, GgufRecord& record) {
  TensorEntry& entry = record.entry;
  const auto number = reader.read<uint32_t>();
  const GgmlType type = ggml_type(number);
  if (!type.dtype) record.unusable = unsupported_text(number);
  const int64_t block = type.dtype ? info(*type.dtype).block_elements : type.block_elements;
  record.has_size = block > 0;
  if (!record.has_size) return;
  MINFER_REQUIRE(Input, entry.shape.last() % block == 0, "has rows of ", entry.shape.last(),
                 " elements, ", type.name, " needs a multiple of ", block);
  if (type.dtype) {
    entry.dtype = *type.dtype;
    entry.file_bytes = static_cast<uint64_t>(bytes_of(entry.dtype, entry.shape));
    return;
  }
  int64_t n_bytes = checked_mul(entry.shape.last() / block, type.block_bytes);
  for (int i = 0; i + 1 < entry.shape.rank; ++i) n_bytes = checked_mul(n_bytes, entry.shape[i]);
  entry.file_bytes = static_cast<uint64_t>(n_bytes);
}

GgufRecord read_record(ByteReader& reader, uint64_t alignment) {
  const uint64_t begin = reader.position();
  const auto name_bytes = reader.read<uint64_t>();
  MINFER_REQUIRE(Input, name_bytes >= 1 && name_bytes <= kMaxTensorNameBytes, "byte ", begin,
                 ": a tensor name of ", name_bytes, " bytes, expected 1 to ", kMaxTensorNameBytes);
  GgufRecord record;
  TensorEntry& entry = record.entry;
  entry.name = reader.text(name_bytes);
  try {
    entry.shape = read_shape(reader);
    read_type(reader, record);
    record.offset = reader.read<uint64_t>();
    MINFER_REQUIRE(Input, record.offset % alignment == 0, "begins at ", record.offset,
                   " in the data, expected a multiple of ", alignment);
    checked_add(record.offset, entry.file_bytes);
  } catch (const Error& e) {
    throw e.in(cat("tensor ", shortened(entry.name)));
  }
  return record;
}

uint64_t read_alignment(const Metadata& metadata) {
  const auto alignment = static_cast<uint64_t>(
      metadata.integer_or("general.alignment", kGgufAlignment, 1, kMaxAlignment));
  MINFER_REQUIRE(Input, std::has_single_bit(alignment), "key general.alignment is ", alignment,
                 ", expected a power of two");
  return alignment;
}

uint64_t align_up_to(uint64_t position, uint64_t alignment) {
  return checked_add(position, alignment - 1) / alignment * alignment;
}

// Holds the records against each other and against the file.
void check_extents(GgufPart& part, uint64_t file_bytes, uint64_t alignment) {
  std::vector<const GgufRecord*> sorted;
  for (const GgufRecord& record : part.records) sorted.push_back(&record);
  std::sort(sorted.begin(), sorted.end(),
            [](const auto* a, const auto* b) { return a->offset < b->offset; });
  const uint64_t data_bytes = file_bytes - std::min(file_bytes, part.data_begin);
  uint64_t used = 0;  // up to here, padding included
  for (size_t i = 0; i < sorted.size(); ++i) {
    const GgufRecord& record = *sorted[i];
    MINFER_REQUIRE(Input, record.end() <= data_bytes, "tensor ", shortened(record.entry.name),
                   ": is bytes [", record.offset, ", ", record.end(), ") of the data, which has ",
                   data_bytes);
    MINFER_REQUIRE(Input, record.offset >= used, "tensor ", shortened(record.entry.name),
                   ": begins at ", record.offset, " in the data, inside tensor ",
                   shortened(sorted[i - (i > 0)]->entry.name));
    part.unused_bytes += record.offset - used;
    used = align_up_to(record.end(), alignment);
  }
  part.unused_bytes += data_bytes - std::min(data_bytes, used);
  const bool all_sizes = std::ranges::all_of(part.records, &GgufRecord::has_size);
  if (!all_sizes) part.unused_bytes = 0;  // it is not known
}

}  // namespace

bool is_gguf(const File& file) {
  return file.size() >= kGgufMagic.size() && ByteReader(file).text(kGgufMagic.size()) == kGgufMagic;
}

uint32_t ggml_type_number(DType dtype) {
  const auto found = std::ranges::find(kGgmlTypes, dtype, &GgmlType::dtype);
  MINFER_CHECK(found != std::end(kGgmlTypes), "no GGUF type for ", dtype);
  return static_cast<uint32_t>(found - std::begin(kGgmlTypes));
}

GgufPart read_gguf_part(const File& file) {
  ByteReader reader(file);
  GgufPart part;
  MINFER_REQUIRE(Input, reader.text(kGgufMagic.size()) == kGgufMagic, "does not begin with ",
                 kGgufMagic);
  part.version = reader.read<uint32_t>();
  const uint32_t swapped = __builtin_bswap32(part.version);
  MINFER_REQUIRE(Input, swapped == 0 || swapped > 3, "is big-endian (version ", swapped,
                 " with its bytes swapped), little-endian files are supported");
  MINFER_REQUIRE(Input, part.version == 2 || part.version == 3, "version ", part.version,
                 ", supported: 2 and 3");
  const auto n_tensors = reader.read<uint64_t>();
  const auto n_pairs = reader.read<uint64_t>();
  constexpr uint64_t kLeastRecordBytes = 8 + 1 + 4 + 8 + 4 + 8, kLeastPairBytes = 8 + 1 + 4 + 1;
  MINFER_REQUIRE(Input, n_tensors <= std::min(kMaxGgufTensors, reader.left() / kLeastRecordBytes),
                 "announces ", n_tensors, " tensors in ", file.size(), " bytes");
  MINFER_REQUIRE(Input, n_tensors <= max_tensors(file.size()), "has ", n_tensors,
                 " tensors, too many for ", file.size(), " bytes");
  MINFER_REQUIRE(Input, n_pairs <= std::min(kMaxKeys, reader.left() / kLeastPairBytes),
                 "announces ", n_pairs, " keys in ", file.size(), " bytes");

  MemoryBudget budget(file.size());
  for (uint64_t i = 0; i < n_pairs; ++i) read_pair(reader, part.metadata, budget);
  const uint64_t alignment = read_alignment(part.metadata);
  for (uint64_t i = 0; i < n_tensors; ++i) part.records.push_back(read_record(reader, alignment));
  part.data_begin = align_up_to(reader.position(), alignment);
  check_extents(part, file.size(), alignment);
  return part;
}

}  // namespace minfer
