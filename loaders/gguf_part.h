#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "loaders/file.h"
#include "loaders/formats.h"

namespace minfer {

constexpr std::string_view kGgufMagic = "GGUF";
constexpr uint64_t kGgufAlignment = 32;  // of tensors, unless the file has another
constexpr uint64_t kMaxGgufTensors = 1 << 20;

enum class GgufValueType : uint32_t {
  U8,
  I8,
  U16,
  I16,
  U32,
  I32,
  F32,
  Bool,
  Text,
  Array,
  U64,
  I64,
  F64
};

uint32_t ggml_type_number(DType dtype);  // the number of the type in tensor records

struct GgufRecord {
  TensorEntry entry;
  uint64_t offset = 0;  // from the start of the data
  // Why the tensor cannot be read, as in TensorSource::unusable; empty if it can. The dtype of such
  // an entry means nothing, and its file_bytes are known only with has_size.
  std::string unusable = {};
  bool has_size = true;
  uint64_t end() const { return offset + entry.file_bytes; }  // cannot overflow: checked when read
};

// One GGUF file, a whole model or a part of a split one: header, key-value pairs, tensor records,
// padding, data.
struct GgufPart {
  uint32_t version = 0;
  Metadata metadata;
  std::vector<GgufRecord> records;  // in the order of the file; inside it, and not overlapping
  uint64_t data_begin = 0;
  uint64_t unused_bytes = 0;  // bytes of the data that are neither tensors nor padding
};

// Reads and checks everything but the data. Throws Input without the name of the file.
// Source: the GGUF specification in ggml's documentation.
GgufPart read_gguf_part(const File& file);

}  // namespace minfer
