#include "kernels/cuda/bench/random_tensors.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/base/math.h"

namespace minfer::cuda {
namespace {

constexpr size_t kBlockBytes = size_t{4} << 20;

// 48 random bits.
uint64_t next_bits(uint64_t& state) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return state >> 16;
}

// The sum of four uniform numbers, in (-2, 2).
float nearly_normal(uint64_t bits) {
  float sum = -2;
  for (int i = 0; i < 4; ++i) sum += float(bits >> (12 * i) & 0xFFF) / 4096;
  return sum;
}

std::vector<char> random_block(DType dtype, size_t n_bytes, float scale) {
  std::vector<char> block(align_up(int64_t(n_bytes), 64));
  uint64_t state = 1;
  if (!is_float(dtype)) {
    for (char& byte : block) byte = char(next_bits(state) >> 20);
    return block;
  }
  visit_float(dtype, [&]<typename T>() {
    T* const values = reinterpret_cast<T*>(block.data());
    for (size_t i = 0; i < block.size() / sizeof(T); ++i) {
      values[i] = from_f32<T>(nearly_normal(next_bits(state)) * scale);
    }
  });
  return block;
}

}  // namespace

DeviceTensor random_tensor(DType dtype, const Shape& shape, float scale) {
  DeviceTensor tensor = allocate_device(dtype, shape);
  const auto n_bytes = size_t(tensor.view().n_bytes());
  const std::vector<char> block = random_block(dtype, std::min(n_bytes, kBlockBytes), scale);
  for (size_t at = 0; at < n_bytes; at += block.size()) {
    MINFER_CUDA_CHECK(cudaMemcpy(static_cast<char*>(tensor.view().data) + at, block.data(),
                                 std::min(block.size(), n_bytes - at), cudaMemcpyHostToDevice));
  }
  MINFER_CUDA_CHECK(cudaDeviceSynchronize());  // other streams do not wait for copies
  return tensor;
}

DeviceTensor constant_tensor(const Shape& shape, float value) {
  DeviceTensor tensor = allocate_device(DType::F32, shape);
  const std::vector<float> host(size_t(shape.n_elements()), value);
  MINFER_CUDA_CHECK(
      cudaMemcpy(tensor.view().data, host.data(), host.size() * 4, cudaMemcpyHostToDevice));
  MINFER_CUDA_CHECK(cudaDeviceSynchronize());  // other streams do not wait for copies
  return tensor;
}

KvLayer random_kv_layer(DType dtype, int64_t n_kv_heads, int64_t head_dim, int64_t n_pages) {
  const Shape scales{n_pages, n_kv_heads, kPagePositions};
  const Shape rows{n_pages, n_kv_heads, kPagePositions, head_dim};
  KvLayer layer;
  layer.keys = random_tensor(dtype, rows, 2);
  layer.values = random_tensor(dtype, rows, 2);
  if (dtype == DType::U8) {
    layer.key_scales = constant_tensor(scales, 0.01f);
    layer.value_scales = constant_tensor(scales, 0.01f);
  }
  layer.n_kv_heads = n_kv_heads;
  layer.head_dim = head_dim;
  layer.n_pages = n_pages;
  layer.dtype = dtype;
  return layer;
}

DeviceTensor pages_in_order(int64_t n_pages) {
  std::vector<int32_t> pages(static_cast<size_t>(n_pages));
  std::iota(pages.begin(), pages.end(), 0);
  DeviceTensor table = allocate_device(DType::F32, {n_pages});  // 4 bytes each
  MINFER_CUDA_CHECK(
      cudaMemcpy(table.view().data, pages.data(), 4 * pages.size(), cudaMemcpyHostToDevice));
  MINFER_CUDA_CHECK(cudaDeviceSynchronize());  // other streams do not wait for it
  return table;
}

DeviceTensor TensorPool::take(DType dtype, const Shape& shape) {
  const int64_t n_bytes = align_up(bytes_of(dtype, shape), 256);
  const int64_t size = memory_.view().n_bytes();
  MINFER_CHECK(n_bytes <= size, "a pool of ", size, " bytes for ", dtype, " ", shape);
  if (at_ + n_bytes > size) at_ = 0;
  const int64_t begin = at_;
  at_ += n_bytes;
  return DeviceTensor({static_cast<char*>(memory_.view().data) + begin, dtype, shape},
                      [](void*) {});
}

Matrix TensorPool::matrix(const WeightFormat& f, int64_t out_dim, int64_t in_dim) {
  Matrix w;
  w.out_dim = out_dim;
  w.in_dim = in_dim;
  w.dtype = f.codes;
  if (f.group == 0) {
    w.storage = take(f.codes, {out_dim, in_dim});
    w.n_bytes = w.storage.view().n_bytes();
    return w;
  }
  w.group = f.group < 0 ? in_dim : f.group;
  w.table = f.table;
  w.code_bits = f.codes == DType::U4 ? 4 : 8;
  const int64_t n_scales = out_dim * in_dim / w.group;
  w.storage = take(DType::U8, {out_dim * in_dim / (f.codes == DType::U4 ? 2 : 1)});
  w.scales = take(f.scales, {n_scales});
  if (f.with_mins) w.mins = take(DType::F32, {n_scales});
  w.n_bytes = w.storage.view().n_bytes() + w.scales.view().n_bytes() +
              (f.with_mins ? w.mins.view().n_bytes() : 0);
  return w;
}

}  // namespace minfer::cuda
