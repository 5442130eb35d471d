#include "engine/kv_cache.h"

namespace minfer {

int64_t KvCache::n_bytes() const {
  int64_t n_bytes = 0;
  for (const KvLayer& layer : layers) {
    for (const DeviceTensor* part :
         {&layer.keys, &layer.values, &layer.key_scales, &layer.value_scales}) {
      if (*part) n_bytes += part->view().n_bytes();
    }
  }
  return n_bytes;
}

int64_t kv_cache_bytes(const ModelConfig& config, DType dtype, int64_t capacity) {
  const int64_t n_rows = 2 * config.n_layers * checked_mul(config.n_kv_heads, capacity);
  const int64_t scale_bytes = dtype == DType::U8 ? bytes_of(DType::F32, n_rows) : 0;
  return checked_add(bytes_of(dtype, checked_mul(n_rows, config.head_dim)), scale_bytes);
}

KvCache make_kv_cache(Backend& backend, const ModelConfig& config, DType dtype, int64_t capacity) {
  KvCache cache;
  for (int64_t i = 0; i < config.n_layers; ++i) {
    cache.layers.push_back(
        backend.make_kv_layer(dtype, config.n_kv_heads, config.head_dim, capacity));
  }
  return cache;
}

}  // namespace minfer
