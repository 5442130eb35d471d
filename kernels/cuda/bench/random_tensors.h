#pragma once

#include "kernels/cuda/device.h"

// The operands of benchmarks.
namespace minfer::cuda {

// The sizes of Llama-2-7B.
constexpr int64_t kBenchDim = 4096, kBenchFfnDim = 11008, kBenchVocab = 32000;
constexpr int64_t kBenchHeads = 32, kBenchHeadDim = 128;

// Approximately normal numbers times `scale`, at most 2 * scale, or random codes. The same 4 MB
// repeat.
DeviceTensor random_tensor(DType dtype, const Shape& shape, float scale = 1);
DeviceTensor constant_tensor(const Shape& shape, float value);  // F32

KvLayer random_kv_layer(DType dtype, int64_t n_kv_heads, int64_t head_dim, int64_t n_pages);
// The page table of a sequence whose pages are contiguous.
DeviceTensor pages_in_order(int64_t n_pages);

// How the elements of a matrix are stored.
struct WeightFormat {
  const char* name;
  DType codes, scales;
  bool with_mins;
  int64_t group;  // 0: floats; -1: the whole row
  CodeTable table = CodeTable::None;
};
constexpr WeightFormat kF16Weights{"f16", DType::F16, DType::F16, false, 0};
constexpr WeightFormat kInt8Weights{"u8_row", DType::U8, DType::F16, false, -1};
constexpr WeightFormat kInt4Weights{"u4_g64", DType::U4, DType::F16, false, 64};
constexpr WeightFormat kQ4KWeights{"u4_g32_f32_mins", DType::U4, DType::F32, true, 32};
constexpr WeightFormat kMxfp4Weights{"u4_g32_f32_table", DType::U4, DType::F32, false, 32,
                                     CodeTable::E2m1};

// Memory of halves, which are small finite values in any type. Tensors and matrices are successive
// views of it, and begin again at its end, so that none is in L2 when its turn comes.
class TensorPool {
 public:
  explicit TensorPool(int64_t n_bytes, float scale = 0.0125f)
      : memory_(random_tensor(DType::F16, {n_bytes / 2}, scale)) {}

  DeviceTensor take(DType dtype, const Shape& shape);
  // A matrix [out_dim, in_dim] whose groups need no padding.
  Matrix matrix(const WeightFormat& format, int64_t out_dim, int64_t in_dim);

 private:
  DeviceTensor memory_;
  int64_t at_ = 0;
};

}  // namespace minfer::cuda
