#pragma once

#include <string>
#include <vector>

#include "loaders/tensor_source.h"

namespace minfer {

// Writes a model of the Llama family; each format derives a class. A writer gets the list of all
// tensors when it is made, with Hugging Face's names and its order of rotary pairs (in halves).
// Then it gets their rows, tensor after tensor, each from its first row to its last.
class ModelWriter {
 public:
  virtual ~ModelWriter() = default;

  // Writes the rows from `begin` on of a tensor without `quant`, in the type of its entry: floats
  // or GGUF blocks. A vector comes whole.
  virtual void write_rows(const TensorEntry& tensor, int64_t begin, const Tensor& rows) = 0;
  // The same for a tensor with `quant`. Each call but a tensor's last has a multiple of 8 rows.
  virtual void write_rows(const TensorEntry& tensor, int64_t begin,
                          const QuantizedMatrix& rows) = 0;
  // Call it after the last row. It syncs the output to the disk, reads it back, checks it and gives
  // it its final name. `report` is JSON about the quantization, for formats that have a place for
  // it. Returns a warning for each failure after the renaming, which leaves the output valid.
  [[nodiscard]] virtual std::vector<std::string> finish(const std::string& report) = 0;
};

}  // namespace minfer
