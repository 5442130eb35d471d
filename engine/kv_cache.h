#pragma once

#include <vector>

#include "kernels/backend.h"
#include "models/spec.h"

namespace minfer {

// Keys and values of every layer: pages with the same numbers in each, which sequences share out
// among them (engine/sequence.h).
struct KvCache {
  std::vector<KvLayer> layers;

  int64_t n_bytes() const;
  int64_t n_bytes_of(int64_t layer) const;
};

// What the backend allocates for it.
int64_t kv_cache_bytes(const Backend& backend, const ModelSpec& spec, DType dtype, int64_t n_pages);

// session_memory() tells beforehand whether it fits.
KvCache make_kv_cache(Backend& backend, const ModelSpec& spec, DType dtype, int64_t n_pages);

}  // namespace minfer
