#pragma once

#include <map>
#include <string>
#include <vector>

#include "loaders/metadata.h"
#include "loaders/output_file.h"
#include "loaders/tensor_source.h"

namespace minfer {

// A GGUF 3 file whose tensors are known from the start and written in pieces, in any order.
// Metadata gets the types that GGUF readers expect: integers of 32 bits where they fit, f32.
class GgufWriter {
 public:
  // Of the entries, `name`, `dtype` and `shape` matter.
  GgufWriter(const std::string& path, const Metadata& metadata,
             const std::vector<TensorEntry>& tensors);

  // Bytes [begin, begin + n) of a tensor.
  void write(const std::string& name, uint64_t begin, const void* bytes, uint64_t n);
  void finish();  // every byte of every tensor is written; to the disk, and closed

 private:
  OutputFile file_;
  std::map<std::string, uint64_t> begins_;  // of each tensor, in the file
  uint64_t n_left_ = 0;                     // bytes of tensors to be written
};

}  // namespace minfer
