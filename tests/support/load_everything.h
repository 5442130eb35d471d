#pragma once

#include <string>

#include "kernels/base/quantized_matrix.h"
#include "loaders/tensor_source.h"

namespace minfer::test {

inline HostTensor dequantized(const QuantizedMatrix& matrix) {
  HostTensor values(DType::F32, {matrix.out_dim(), matrix.in_dim()});
  for (int64_t row = 0; row < matrix.out_dim(); ++row) {
    dequantize_row(values.as<float>() + row * matrix.in_dim(), matrix, row);
  }
  return values;
}

// Everything that a loader can be asked for: every key as text, every tensor as f32.
inline void load_everything(const std::string& path) {
  const auto source = open_source(path);
  for (const auto& [key, value] : source->metadata.all()) source->metadata.as_text(key);
  for (const TensorEntry& entry : source->tensors) {
    if (entry.quant) {
      dequantized(source->read_quantized(entry).view());
    } else if (entry.shape.n_elements() > 0) {
      to_f32_tensor(source->read(entry));
    }
  }
  source->check_unchanged();
}

}  // namespace minfer::test
