#include "kernels/cuda/elementwise/rows.cuh"
#include "kernels/cuda/launchers.h"

namespace minfer::cuda {
namespace {

constexpr float kLog2E = 1.4426950408889634f;

// out[t] = exp(x[t] - max) / sum
//
//   x, out   [n_rows, n] T, rows aligned to 16 bytes, n a multiple of 8; out may be x
//   launch   a block a row, which it keeps in registers (rows.cuh)
//   maths    f32; exp2 of (x - max) log2 e
//   moves    2 n_rows * n * sizeof(T) bytes
template <typename T>
__global__ void __launch_bounds__(kMaxRowThreads) softmax_kernel(T* out, const T* x, int n) {
  __shared__ float scratch[32];
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  const int64_t first = int64_t{blockIdx.x} * n;
  RegisterRow row{.dim = n};
  float max = -INFINITY;
  bool has_nan = false;
  row.for_each([&](float(&v)[kChunk], int at) {
    load_chunk(v, x + first + at);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      max = fmaxf(max, v[i]);
      has_nan |= v[i] != v[i];
    }
  });
  max = block_reduce(max, Max{}, -INFINITY, scratch);
  float sum = has_nan ? NAN : 0;  // fmaxf passes over a NaN
  row.for_each([&](float(&v)[kChunk], int) {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) sum += v[i] = exp2f((v[i] - max) * kLog2E);
  });
  const float scale = 1 / block_reduce(sum, Sum{}, 0, scratch);
  row.for_each([&](float(&v)[kChunk], int at) {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) v[i] *= scale;
    store_chunk(out + first + at, v);
  });
}

// The same for any n: one pass for maximum and sum together, rescaled where the maximum grows.
// source: Milakov and Gimelshein 2018, arXiv:1805.02867, algorithm 3
template <typename T>
__global__ void __launch_bounds__(256) online_softmax_kernel(T* out, const T* x, int n) {
  __shared__ float scratch[32];
  ptx::wait_for_predecessor();
  const int64_t first = int64_t{blockIdx.x} * n;
  float max = -INFINITY, sum = 0;
  for (int i = threadIdx.x; i < n; i += 256) {
    const float v = to_float(x[first + i]), larger = fmaxf(max, v);
    if (larger == -INFINITY && v == v) continue;  // nothing but -inf so far
    sum = sum * exp2f((max - larger) * kLog2E) + exp2f((v - larger) * kLog2E);
    max = larger;
  }
  const float all = block_reduce(max, Max{}, -INFINITY, scratch);
  if (sum == sum) sum *= max == -INFINITY ? 0 : exp2f((max - all) * kLog2E);
  const float scale = 1 / block_reduce(sum, Sum{}, 0, scratch);
  for (int i = threadIdx.x; i < n; i += 256) {
    out[first + i] = from_float<T>(exp2f((to_float(x[first + i]) - all) * kLog2E) * scale);
  }
}

// nll[t] = max + log(sum_j exp(x[t, j] - max)) - x[t, target[t]]
//
//   x        [n_rows, n] F32; nll [n_rows]
//   launch   a block of 1024 threads a row, read once: as online_softmax_kernel
//   moves    4 n_rows * n bytes
__global__ void __launch_bounds__(1024)
    nll_kernel(float* nll, const float* x, const int32_t* targets, int n) {
  __shared__ float scratch[32];
  ptx::wait_for_predecessor();
  const float* const row = x + int64_t{blockIdx.x} * n;
  float max = -INFINITY, sum = 0;
  for (int i = threadIdx.x; i < n; i += 1024) {
    const float v = row[i], larger = fmaxf(max, v);
    if (larger == -INFINITY && v == v) continue;
    sum = sum * exp2f((max - larger) * kLog2E) + exp2f((v - larger) * kLog2E);
    max = larger;
  }
  const float all = block_reduce(max, Max{}, -INFINITY, scratch);
  if (sum == sum) sum *= max == -INFINITY ? 0 : exp2f((max - all) * kLog2E);
  sum = block_reduce(sum, Sum{}, 0, scratch);
  if (threadIdx.x == 0) nll[blockIdx.x] = all - row[targets[blockIdx.x]] + logf(sum);
}

}  // namespace

void negative_log_likelihoods(cudaStream_t stream, Tensor nll, Tensor logits,
                              const int32_t* targets) {
  MINFER_CHECK(nll.shape == Shape({logits.shape[0]}), "nll ", nll.shape, " of ", logits.shape);
  launch(nll_kernel, dim3(narrow<unsigned>(logits.shape[0])), dim3(1024), 0, stream,
         nll.as<float>(), logits.as<const float>(), targets, narrow<int>(logits.shape[1]));
}

void softmax(cudaStream_t stream, Tensor out, Tensor x) {
  const int64_t n = x.shape.last(), n_rows = x.n_elements() / n;
  MINFER_CHECK(out.shape == x.shape && out.dtype == x.dtype, "softmax: ", x.dtype, " ", x.shape,
               " into ", out.dtype, " ", out.shape);
  if (n_rows == 0) return;
  visit_device_float(x.dtype, [&]<typename T>() {
    const bool whole = fits_register_row(n);
    launch(whole ? softmax_kernel<T> : online_softmax_kernel<T>, dim3(narrow<unsigned>(n_rows)),
           dim3(whole ? row_threads(n) : 256), 0, stream, data_of<T>(out), data_of<T>(x),
           narrow<int>(n));
  });
}

}  // namespace minfer::cuda
