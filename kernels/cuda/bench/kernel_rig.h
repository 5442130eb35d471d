#pragma once

#include <vector>

#include "kernels/bench.h"
#include "kernels/cuda/bench/random_tensors.h"
#include "kernels/cuda/bench/timing.h"
#include "kernels/cuda/launchers.h"

// What the parts of time_cuda_kernels have in common.
namespace minfer::cuda {

constexpr int kBenchLaunches = 32;  // of a graph

struct KernelRig {
  explicit KernelRig(const KernelChoice& wanted) : choice(wanted) {}
  cudaStream_t stream() const { return own_stream.get(); }

  const KernelChoice& choice;
  Stream own_stream = make_stream();
  // Operands that are read, and those that are written. A capture must not allocate memory.
  TensorPool inputs{int64_t{2} << 30}, outputs{int64_t{2} << 30};
};

inline DeviceTensor view_of_tensor(const Tensor& t) {
  return DeviceTensor(t, [](void*) {});
}
// A cache with kBenchHeads heads, without scales.
inline KvLayer bench_layer(DType dtype, int64_t n_pages, DeviceTensor keys, DeviceTensor values) {
  KvLayer layer;
  layer.keys = std::move(keys);
  layer.values = std::move(values);
  layer.n_kv_heads = kBenchHeads;
  layer.head_dim = kBenchHeadDim;
  layer.n_pages = n_pages;
  layer.dtype = dtype;
  return layer;
}
inline CachePlace first_place(const DeviceTensor& pages) {
  return {static_cast<const int32_t*>(pages.view().data), pages.view().n_elements(), 0};
}
inline DeviceTensor to_card(const std::vector<int32_t>& values) {
  const int64_t n = std::ssize(values);
  DeviceTensor tensor = allocate_device(DType::F32, {n});  // as large as int32
  MINFER_CUDA_CHECK(
      cudaMemcpy(tensor.view().data, values.data(), size_t(4 * n), cudaMemcpyHostToDevice));
  MINFER_CUDA_CHECK(cudaDeviceSynchronize());  // other streams do not wait for the copy
  return tensor;
}

void time_row_kernels(KernelRig& rig);     // norms, elements, softmax, positions, lookups
void time_matrix_kernels(KernelRig& rig);  // GEMM, GEMV, dequantization
void time_code_kernels(KernelRig& rig);    // GEMMs of int8 codes, and what makes rows of codes
void time_attention_kernels(KernelRig& rig);

}  // namespace minfer::cuda
