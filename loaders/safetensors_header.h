#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/tensor.h"
#include "loaders/file.h"

namespace minfer {

// One tensor of a safetensors file. Every type of the format is read and checked; `dtype` is set if
// a TensorEntry can have it.
struct SafetensorsRecord {
  std::string name;
  std::string type_name;
  std::vector<int64_t> dims;    // at most 8
  std::optional<DType> dtype;   // none: a type without kernels
  uint64_t begin = 0, end = 0;  // bytes in the data; end is one past the last
};

struct SafetensorsHeader {
  std::vector<SafetensorsRecord> records;       // in the order of the data
  uint64_t data_begin = 0;                      // in the file
  std::map<std::string, std::string> metadata;  // __metadata__
};

// Reads and checks everything but the data: the tensors fill the file without holes. Throws Input
// without the name of the file. Source: the safetensors README, "Format".
SafetensorsHeader read_safetensors_header(const File& file);

}  // namespace minfer
