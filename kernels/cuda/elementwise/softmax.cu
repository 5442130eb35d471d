#include "kernels/cuda/elementwise/rows.cuh"
#include "kernels/cuda/launchers.h"

namespace minfer::cuda {
namespace {

constexpr int kThreads = 256;
constexpr float kLog2E = 1.4426950408889634f;

struct MaxOrNan {
  __device__ float operator()(float a, float b) const { return ptx::max_or_nan(a, b); }
};

constexpr int kThreadElements = 32;  // of a row

// out[t] = exp(x[t] - max) / sum
//
//   x, out   [n_rows, n] T, rows 16-byte aligned; out may be x
//   launch   a block per row, which it keeps in registers (PackedRow)
//   maths    f32; exp2 of (x - max) log2 e, computed twice to save registers; a NaN becomes the
//            maximum and makes the whole row NaN
//   moves    2 n_rows * n * sizeof(T) bytes
template <typename T>
__global__ void __maxnreg__(sizeof(T) == 2 ? 40 : 64) softmax_kernel(T* out, const T* x, int n) {
  __shared__ float scratch[32];
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  using Row = PackedRow<T, kThreadElements / Vec<T>::kSize>;
  using V = typename Row::V;
  const int64_t first = int64_t{blockIdx.x} * n;
  Row row(x + first, n);
  float max = -INFINITY;
  row.for_each([&](const V& v, int) {
#pragma unroll
    for (int i = 0; i < V::kSize; ++i) max = ptx::max_or_nan(max, to_float(v[i]));
  });
  row.keep();
  max = block_reduce(max, MaxOrNan{}, -INFINITY, scratch);
  const auto power = [&](T value) { return ptx::exp2_fast((to_float(value) - max) * kLog2E); };
  float sum = 0;
  row.for_each([&](const V& v, int) {
#pragma unroll
    for (int i = 0; i < V::kSize; ++i) sum += power(v[i]);
  });
  row.keep();
  const float scale = 1 / block_reduce(sum, Sum{}, 0, scratch);
  row.for_each([&](V& v, int at) {
#pragma unroll
    for (int i = 0; i < V::kSize; ++i) v[i] = from_float<T>(power(v[i]) * scale);
    reinterpret_cast<V*>(out + first)[at] = v;
  });
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
    using Row = PackedRow<T, kThreadElements / Vec<T>::kSize>;
    const bool whole = Row::fits(n) && aligned16(x) && aligned16(out);
    launch(whole ? softmax_kernel<T> : online_softmax_kernel<T>, dim3(narrow<unsigned>(n_rows)),
           dim3(whole ? Row::threads(n) : kThreads), 0, stream, data_of<T>(out), data_of<T>(x),
           narrow<int>(n));
  });
}

}  // namespace minfer::cuda
