#include <algorithm>

#include "kernels/cuda/elementwise/rows.cuh"
#include "kernels/cuda/launchers.h"

namespace minfer::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRowWarps = 2;  // warps per block, one row each
constexpr float kLog2E = 1.4426950408889634f;

struct MaxOrNan {
  __device__ float operator()(float a, float b) const { return ptx::max_or_nan(a, b); }
};

constexpr int kLaneVecs = 16;  // vectors per lane, in registers, of a row that one warp takes

// softmax_kernel for rows of up to kLaneVecs 16-byte vectors per lane
//
//   launch   one warp per row, so that nothing waits at barriers; kRowWarps warps per block
//   maths    as softmax_kernel, but it computes each exponential twice, to save registers
template <typename T>
__global__ void __launch_bounds__(kRowWarps * 32, 10)
    softmax_rows_kernel(T* out, const T* x, int64_t n_rows, int n) {
  using V = Vec<T>;
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  const int64_t row = int64_t{blockIdx.x} * kRowWarps + threadIdx.x / 32;
  if (row >= n_rows) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, n_vecs = n / V::kSize;
  V v[kLaneVecs];
  const auto for_each = [&](auto&& f) {
#pragma unroll
    for (int k = 0; k < kLaneVecs; ++k) {
      if (lane + 32 * k < n_vecs) f(k);
    }
  };
  const V* const from = reinterpret_cast<const V*>(x + row * n) + lane;
  for_each([&](int k) { v[k] = from[32 * k]; });
  float max = -INFINITY;
  for_each([&](int k) {
#pragma unroll
    for (int i = 0; i < V::kSize; ++i) max = ptx::max_or_nan(max, to_float(v[k][i]));
  });
  max = warp_reduce(max, MaxOrNan{});
  for_each([&](int k) { keep_packed(v[k]); });
  const auto power = [&](int k, int i) {
    return ptx::exp2_fast((to_float(v[k][i]) - max) * kLog2E);
  };
  float sum = 0;
  for_each([&](int k) {
#pragma unroll
    for (int i = 0; i < V::kSize; ++i) sum += power(k, i);
  });
  const float scale = 1 / warp_reduce(sum, Sum{});
  for_each([&](int k) { keep_packed(v[k]); });
  V* const to = reinterpret_cast<V*>(out + row * n) + lane;
  for_each([&](int k) {
    V vec;
#pragma unroll
    for (int i = 0; i < V::kSize; ++i) vec[i] = from_float<T>(power(k, i) * scale);
    to[32 * k] = vec;
  });
}

constexpr int kRowElements = 32;  // elements of a row per thread, in registers

// out[t] = exp(x[t] - max) / sum
//
//   x, out   [n_rows, n] T, rows 16-byte aligned; out may be x
//   launch   each block takes every gridDim.x-th row, which it keeps in registers. Meanwhile, each
//            thread copies its elements of the next row to shared memory, so that memory is never
//            idle, though an SM has only one row of 32000 elements at a time
//   maths    f32; exp2 of (x - max) log2 e; a NaN becomes the maximum and makes the whole row NaN
//   moves    2 n_rows * n * sizeof(T) bytes
template <typename T>
__global__ void __launch_bounds__(kMaxRowThreads)
    softmax_kernel(T* out, const T* x, int64_t n_rows, int n) {
  using V = Vec<T>;
  constexpr int kVecs = kRowElements / V::kSize;
  __shared__ float scratch[32];
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  V* const next = reinterpret_cast<V*>(ptx::dynamic_shared());
  const auto for_each = [&](auto&& f) {
#pragma unroll
    for (int k = 0; k < kVecs; ++k) {
      const int at = static_cast<int>(threadIdx.x) + k * static_cast<int>(blockDim.x);
      if (at < n / V::kSize) f(k, at);
    }
  };
  const auto fetch = [&](int64_t row) {
    const V* const from = reinterpret_cast<const V*>(x + row * n);
    for_each([&](int, int at) { ptx::copy_async_16(ptx::shared_address(next + at), from + at); });
    ptx::copy_async_commit();
  };
  fetch(blockIdx.x);
  for (int64_t row = blockIdx.x; row < n_rows; row += gridDim.x) {
    ptx::copy_async_wait<0>();
    float v[kVecs][V::kSize], max = -INFINITY;
    for_each([&](int k, int at) {
      const V vec = next[at];
#pragma unroll
      for (int i = 0; i < V::kSize; ++i) {
        v[k][i] = to_float(vec[i]);
        max = ptx::max_or_nan(max, v[k][i]);
      }
    });
    if (row + gridDim.x < n_rows) fetch(row + gridDim.x);
    max = block_reduce(max, MaxOrNan{}, -INFINITY, scratch);
    float sum = 0;
    for_each([&](int k, int) {
#pragma unroll
      for (int i = 0; i < V::kSize; ++i) {
        v[k][i] = ptx::exp2_fast((v[k][i] - max) * kLog2E);
        sum += v[k][i];
      }
    });
    const float scale = 1 / block_reduce(sum, Sum{}, 0, scratch);
    V* const to = reinterpret_cast<V*>(out + row * n);
    for_each([&](int k, int at) {
      V vec;
#pragma unroll
      for (int i = 0; i < V::kSize; ++i) vec[i] = from_float<T>(v[k][i] * scale);
      to[at] = vec;
    });
  }
}

// The maximum and the sum of exp(x - max) in one pass; the sum is rescaled when the maximum grows.
// source: Milakov and Gimelshein 2018, arXiv:1805.02867, algorithm 3
struct OnlineSum {
  float max = -INFINITY, sum = 0;

  template <typename V>
  __device__ void add(V vec) {
    float v[V::kSize], larger = max;
#pragma unroll
    for (int i = 0; i < V::kSize; ++i) {
      v[i] = to_float(vec[i]);
      larger = fmaxf(larger, v[i]);
    }
    const float base = larger == -INFINITY ? 0 : larger;  // only -inf so far: exponentials are 0
    sum *= exp2f((max - base) * kLog2E);
#pragma unroll
    for (int i = 0; i < V::kSize; ++i) sum += exp2f((v[i] - base) * kLog2E);
    max = larger;
  }

  // The result of all threads of a block together. All of them call.
  __device__ OnlineSum of_block(float* scratch) const {
    const float all = block_reduce(max, Max{}, -INFINITY, scratch);
    const float own = sum == sum && max == -INFINITY ? 0 : sum * exp2f((max - all) * kLog2E);
    return {all, block_reduce(own, Sum{}, 0, scratch)};
  }
};

// softmax_kernel for any n and alignment
//
//   launch   one block per row; a thread reads one element at a time
//   maths    f32, OnlineSum; a NaN makes the whole row NaN
//   moves    3 n_rows * n * sizeof(T) bytes: reads the row twice
template <typename T>
__global__ void __launch_bounds__(kThreads) online_softmax_kernel(T* out, const T* x, int n) {
  __shared__ float scratch[32];
  ptx::wait_for_predecessor();
  const int64_t first = int64_t{blockIdx.x} * n;
  OnlineSum part;
  for (int i = threadIdx.x; i < n; i += kThreads) {
    part.add(*reinterpret_cast<const Vec<T, 1>*>(x + first + i));
  }
  const OnlineSum row = part.of_block(scratch);
  const float scale = 1 / row.sum;
  for (int i = threadIdx.x; i < n; i += kThreads) {
    out[first + i] = from_float<T>(exp2f((to_float(x[first + i]) - row.max) * kLog2E) * scale);
  }
}

// nll[t] = max + log(sum_j exp(x[t, j] - max)) - x[t, target[t]]
//
//   x        [n_rows, n] F32; nll [n_rows]
//   launch   one block per row, which is read once, in vectors of kVec elements
//   moves    4 n_rows * n bytes
template <int kVec>
__global__ void __launch_bounds__(kThreads, 6)
    nll_kernel(float* nll, const float* x, const int32_t* targets, int n) {
  __shared__ float scratch[32];
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  const float* const row = x + int64_t{blockIdx.x} * n;
  OnlineSum part;
#pragma unroll 4
  for (int i = threadIdx.x; i < n / kVec; i += kThreads) {
    part.add(reinterpret_cast<const Vec<float, kVec>*>(row)[i]);
  }
  const OnlineSum all = part.of_block(scratch);
  if (threadIdx.x == 0) nll[blockIdx.x] = all.max - row[targets[blockIdx.x]] + logf(all.sum);
}

}  // namespace

void negative_log_likelihoods(cudaStream_t stream, Tensor nll, Tensor logits,
                              const int32_t* targets) {
  MINFER_CHECK(nll.shape == Shape({logits.shape[0]}), "nll ", nll.shape, " of ", logits.shape);
  const int64_t n_rows = logits.shape[0], n = logits.shape[1];
  const bool whole = n % 4 == 0 && aligned16(logits);
  launch(whole ? nll_kernel<4> : nll_kernel<1>, dim3(narrow<unsigned>(n_rows)), dim3(kThreads), 0,
         stream, nll.as<float>(), logits.as<const float>(), targets, narrow<int>(n));
}

void softmax(cudaStream_t stream, Tensor out, Tensor x) {
  const int64_t n = x.shape.last(), n_rows = x.n_elements() / n;
  MINFER_CHECK(out.shape == x.shape && out.dtype == x.dtype, "softmax: ", x.dtype, " ", x.shape,
               " into ", out.dtype, " ", out.shape);
  if (n_rows == 0) return;
  visit_device_float(x.dtype, [&]<typename T>() {
    const int64_t n_bytes = n * int64_t{sizeof(T)};
    const bool whole = n_bytes % 16 == 0 && aligned16(x) && aligned16(out);
    if (whole && n_bytes <= kLaneVecs * 32 * 16) {
      return launch(softmax_rows_kernel<T>, dim3(narrow<unsigned>(ceil_div(n_rows, kRowWarps))),
                    dim3(kRowWarps * 32), 0, stream, data_of<T>(out), data_of<T>(x), n_rows,
                    narrow<int>(n));
    }
    if (!whole || n > kMaxRowThreads * kRowElements ||
        n_bytes > card_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - 1024) {
      return launch(online_softmax_kernel<T>, dim3(narrow<unsigned>(n_rows)), dim3(kThreads), 0,
                    stream, data_of<T>(out), data_of<T>(x), narrow<int>(n));
    }
    MINFER_CUDA_CHECK(cudaFuncSetAttribute(
        softmax_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, narrow<int>(n_bytes)));
    const int64_t n_threads = align_up(ceil_div(n, int64_t{kRowElements}), 32);
    int n_blocks = 0;  // per SM
    MINFER_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        &n_blocks, softmax_kernel<T>, narrow<int>(n_threads), size_t(n_bytes)));
    const int64_t at_once = int64_t{n_blocks} * card_attribute(cudaDevAttrMultiProcessorCount);
    launch(softmax_kernel<T>, dim3(narrow<unsigned>(std::min(n_rows, at_once))),
           dim3(narrow<unsigned>(n_threads)), size_t(n_bytes), stream, data_of<T>(out),
           data_of<T>(x), n_rows, narrow<int>(n));
  });
}

}  // namespace minfer::cuda
