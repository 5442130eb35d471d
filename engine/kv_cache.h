#pragma once

#include <vector>

#include "kernels/backend.h"
#include "models/spec.h"

namespace minfer {

// Keys and values of every layer for one sequence. What is cached is a prefix: positions are
// written in order, and forgetting the last ones needs no work.
struct KvCache {
  std::vector<KvLayer> layers;

  int64_t n_bytes() const;
};

// Bytes that the backend gives it, padding aside.
int64_t kv_cache_bytes(const ModelSpec& spec, DType dtype, int64_t capacity);

// session_memory() tells beforehand whether it fits.
KvCache make_kv_cache(Backend& backend, const ModelSpec& spec, DType dtype, int64_t capacity);

}  // namespace minfer
