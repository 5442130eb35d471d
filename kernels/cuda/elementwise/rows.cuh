#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/reduce.cuh"

// A block keeps a row in registers, so that it is read once: RegisterRow as floats, in chunks of 8
// elements, at most kRowChunks chunks per thread; PackedRow as it is in memory.
namespace minfer::cuda {

constexpr int kRowChunks = 2;
constexpr int kChunk = 8;
constexpr int kMaxRowThreads = 1024;
constexpr size_t kReduceBytes = 32 * sizeof(float);  // dynamic shared memory of block_reduce

template <typename T>
__device__ void load_chunk(float (&to)[kChunk], const T* from) {
  using V = Vec<T>;
#pragma unroll
  for (int part = 0; part < kChunk / V::kSize; ++part) {
    const V v = reinterpret_cast<const V*>(from)[part];
#pragma unroll
    for (int i = 0; i < V::kSize; ++i) to[part * V::kSize + i] = to_float(v[i]);
  }
}

template <typename T>
__device__ void store_chunk(T* to, const float (&from)[kChunk]) {
  using V = Vec<T>;
#pragma unroll
  for (int part = 0; part < kChunk / V::kSize; ++part) {
    V v;
#pragma unroll
    for (int i = 0; i < V::kSize; ++i) v[i] = from_float<T>(from[part * V::kSize + i]);
    reinterpret_cast<V*>(to)[part] = v;
  }
}

// A row of `dim` elements, dim a multiple of 8. for_each() calls f(chunk, first element) for each
// chunk of this thread; a chunk is float[8] and keeps its values from call to call.
struct RegisterRow {
  float values[kRowChunks][kChunk];
  int dim;

  template <typename F>
  __device__ void for_each(F&& f) {
#pragma unroll
    for (int c = 0; c < kRowChunks; ++c) {
      const int at = (static_cast<int>(threadIdx.x) + c * static_cast<int>(blockDim.x)) * kChunk;
      if (at < dim) f(values[c], at);
    }
  }
};

// A row of `n` elements of T, n a multiple of V::kSize, in up to kVecs vectors of 16 bytes per
// thread, which keep their type: with few registers per thread, an SM has several rows at once, and
// reads some while it computes with others. for_each() calls f(vector, index of the vector).
template <typename T, int kVecs>
struct PackedRow {
  using V = Vec<T>;
  static constexpr int64_t kMost = int64_t{kMaxRowThreads} * kVecs * V::kSize;

  V values[kVecs];
  int n;

  // Reads the row that begins at `from`.
  __device__ PackedRow(const T* from, int n_elements) : n(n_elements) {
    for_each([&](V& v, int at) { v = reinterpret_cast<const V*>(from)[at]; });
  }
  template <typename F>
  __device__ void for_each(F&& f) {
#pragma unroll
    for (int k = 0; k < kVecs; ++k) {
      const int at = static_cast<int>(threadIdx.x) + k * static_cast<int>(blockDim.x);
      if (at < n / V::kSize) f(values[k], at);
    }
  }
  // Between two passes: keeps no more than the packed vectors.
  __device__ void keep() {
#pragma unroll
    for (V& v : values) keep_packed(v);
  }

  static bool fits(int64_t n_elements) { return n_elements % V::kSize == 0 && n_elements <= kMost; }
  static unsigned threads(int64_t n_elements) {
    return narrow<unsigned>(align_up(ceil_div(n_elements, int64_t{kVecs} * V::kSize), 32));
  }
};

inline bool fits_register_row(int64_t dim) {
  return dim % kChunk == 0 && dim <= int64_t{kMaxRowThreads} * kRowChunks * kChunk;
}
inline unsigned row_threads(int64_t dim) {
  return narrow<unsigned>(align_up(ceil_div(dim, int64_t{kRowChunks} * kChunk), 32));
}

}  // namespace minfer::cuda
