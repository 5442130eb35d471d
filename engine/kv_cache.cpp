#include "engine/kv_cache.h"

namespace minfer {

int64_t KvCache::n_bytes() const {
  int64_t n_bytes = 0;
  for (int64_t i = 0; i < std::ssize(layers); ++i) n_bytes += n_bytes_of(i);
  return n_bytes;
}

int64_t KvCache::n_bytes_of(int64_t layer) const {
  const KvLayer& of_layer = layers.at(size_t(layer));
  int64_t n_bytes = 0;
  for (const DeviceTensor* part :
       {&of_layer.keys, &of_layer.values, &of_layer.key_scales, &of_layer.value_scales}) {
    if (*part) n_bytes += part->view().n_bytes();
  }
  return n_bytes;
}

int64_t kv_cache_bytes(const Backend& backend, const ModelSpec& spec, DType dtype,
                       int64_t n_pages) {
  int64_t n_bytes = 0;
  const auto add_twice = [&](int64_t of_one) {  // keys and values
    n_bytes = checked_add(n_bytes, checked_mul(int64_t{2}, backend.allocated_bytes(of_one)));
  };
  for (const LayerSpec& layer : spec.layers) {
    const int64_t n_rows = checked_mul(layer.n_kv_heads, checked_mul(n_pages, kPagePositions));
    add_twice(bytes_of(dtype, checked_mul(n_rows, layer.head_dim)));
    if (dtype == DType::U8) add_twice(bytes_of(DType::F32, n_rows));  // scales
  }
  return n_bytes;
}

KvCache make_kv_cache(Backend& backend, const ModelSpec& spec, DType dtype, int64_t n_pages) {
  KvCache cache;
  for (const LayerSpec& layer : spec.layers) {
    cache.layers.push_back(backend.make_kv_layer(dtype, layer.n_kv_heads, layer.head_dim, n_pages));
  }
  return cache;
}

}  // namespace minfer
