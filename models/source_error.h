#pragma once

#include <string_view>

#include "loaders/file.h"
#include "loaders/tensor_source.h"

namespace minfer {

// With the model's path in front, unless the error names a file of the model already.
inline Error in_source(const TensorSource& source, const Error& e) {
  const std::string path = shown_path(source.path);
  return std::string_view(e.what()).starts_with(path) ? e : e.in(path);
}

}  // namespace minfer
