#pragma once

#include <string>
#include <vector>

#include "loaders/tensor_source.h"

namespace minfer {

// A model of the Llama family that is being written, in whatever format. A writer is given all
// tensors when it is made, named as Hugging Face names them, rotary pairs in halves; then come
// their rows, tensor after tensor, each from its first row to its last.
class ModelWriter {
 public:
  virtual ~ModelWriter() = default;

  // Rows [begin, begin + rows) of a tensor of a float type (a vector is one row), as its entry
  // says.
  virtual void write_rows(const TensorEntry& tensor, int64_t begin, const Tensor& rows) = 0;
  // The same of a tensor with `quant`. But for the last call of a tensor, rows are multiples of 8.
  virtual void write_rows(const TensorEntry& tensor, int64_t begin,
                          const QuantizedMatrix& rows) = 0;
  // All rows are written. Puts everything on the disk, reads it back and checks it, and gives it
  // its final name. `report` is JSON about the quantization, for formats that have a place for it.
  // Returns a line for each thing that went wrong after that, when the output is there.
  [[nodiscard]] virtual std::vector<std::string> finish(const std::string& report) = 0;
};

}  // namespace minfer
