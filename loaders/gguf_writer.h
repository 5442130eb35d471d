#pragma once

#include <map>
#include <string>
#include <vector>

#include "loaders/metadata.h"
#include "loaders/output_file.h"
#include "loaders/tensor_source.h"

namespace minfer {

// A GGUF 3 file whose tensors are known from the start and written in pieces, in any order.
// Metadata gets the types that GGUF readers expect: f32, and 32-bit integers if the values fit.
class GgufWriter {
 public:
  // Uses only `name`, `dtype` and `shape` of the entries.
  GgufWriter(const std::string& path, const Metadata& metadata,
             const std::vector<TensorEntry>& tensors);

  // Writes bytes [begin, begin + n) of a tensor.
  void write(const std::string& name, uint64_t begin, const void* bytes, uint64_t n);
  void finish();  // after the last byte of all tensors: syncs the file to the disk and closes it

 private:
  OutputFile file_;
  std::map<std::string, uint64_t> begins_;  // of each tensor, in the file
  uint64_t n_left_ = 0;                     // bytes of tensors to be written
};

}  // namespace minfer
