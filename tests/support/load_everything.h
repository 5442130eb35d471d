#pragma once

#include <string>

#include "loaders/tensor_source.h"

namespace minfer::test {

// All that a loader can be asked for: every key as text, every tensor as f32.
inline void load_everything(const std::string& path) {
  const auto source = open_source(path);
  for (const auto& [key, value] : source->metadata.all()) source->metadata.as_text(key);
  for (const TensorEntry& entry : source->tensors) {
    if (entry.shape.n_elements() > 0) to_f32_tensor(source->read(entry));
  }
  source->check_unchanged();
}

}  // namespace minfer::test
