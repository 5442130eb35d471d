#pragma once

#include <string>

#include "loaders/tensor_source.h"

namespace minfer::test {

// A tensor that the test knows to exist.
inline const TensorEntry& tensor_of(const TensorSource& source, const std::string& name) {
  const TensorEntry* entry = source.find(name);
  MINFER_CHECK(entry != nullptr, source.path, " has no tensor ", name);
  return *entry;
}

}  // namespace minfer::test
