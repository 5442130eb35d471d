#pragma once

#include "kernels/cuda/device.h"

// What the kernels are timed on.
namespace minfer::cuda {

// Roughly normal numbers times `scale`, none beyond 2 * scale, or random codes; the same 4 MB
// over and over.
DeviceTensor random_tensor(DType dtype, const Shape& shape, float scale = 1);
DeviceTensor constant_tensor(const Shape& shape, float value);  // F32

KvLayer random_kv_layer(DType dtype, int64_t n_kv_heads, int64_t head_dim, int64_t n_pages);
// The table of a sequence whose pages lie one behind the other.
DeviceTensor pages_in_order(int64_t n_pages);

// How the elements of a matrix are stored.
struct WeightFormat {
  const char* name;
  DType codes, scales;
  bool with_mins;
  int64_t group;  // 0: floats; -1: the row
};
constexpr WeightFormat kF16Weights{"f16", DType::F16, DType::F16, false, 0};
constexpr WeightFormat kInt8Weights{"u8_row", DType::U8, DType::F16, false, -1};
constexpr WeightFormat kInt4Weights{"u4_g64", DType::U4, DType::F16, false, 64};
constexpr WeightFormat kQ4KWeights{"u4_g32_f32_mins", DType::U4, DType::F32, true, 32};

// Memory of halves that are small and finite in any type. Tensors and matrices are views of it, one
// behind the other and round again, so that none is in the cache when its turn comes.
class TensorPool {
 public:
  explicit TensorPool(int64_t n_bytes, float scale = 0.0125f)
      : memory_(random_tensor(DType::F16, {n_bytes / 2}, scale)) {}

  DeviceTensor take(DType dtype, const Shape& shape);
  // [out_dim, in_dim], of which the groups need no padding.
  Matrix matrix(const WeightFormat& format, int64_t out_dim, int64_t in_dim);

 private:
  DeviceTensor memory_;
  int64_t at_ = 0;
};

}  // namespace minfer::cuda
