#include "engine/kv_cache.h"

#include "models/host_memory.h"

namespace minfer {

int64_t KvCache::n_bytes() const {
  int64_t n_bytes = 0;
  for (const KvLayer& layer : layers) {
    n_bytes += layer.keys.view().n_bytes() + layer.values.view().n_bytes();
  }
  return n_bytes;
}

KvCache make_kv_cache(Backend& backend, const ModelConfig& config, DType dtype, int64_t capacity) {
  const int64_t n_elements = 2 * config.n_layers * checked_mul(config.kv_dim(), capacity);
  require_host_memory(bytes_of(dtype, n_elements), cat("a KV cache of ", capacity, " positions"));
  KvCache cache;
  for (int64_t i = 0; i < config.n_layers; ++i) {
    cache.layers.push_back(
        backend.make_kv_layer(dtype, config.n_kv_heads, config.head_dim, capacity));
  }
  return cache;
}

}  // namespace minfer
