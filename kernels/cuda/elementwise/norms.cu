#include <bit>
#include <climits>

#include "kernels/cuda/elementwise/activations.cuh"
#include "kernels/cuda/elementwise/rows.cuh"
#include "kernels/cuda/launchers.h"

namespace minfer::cuda {
namespace {

enum class NormKind { Rms, Layer, LayerGeluErf, LayerGeluTanh };

template <NormKind kKind>
__device__ float finish(float x) {
  if (kKind == NormKind::LayerGeluErf) return gelu_erf(x);
  if (kKind == NormKind::LayerGeluTanh) return gelu_tanh(x);
  return x;
}

// Rms:    out[t] = x[t] * weight / sqrt(mean(x[t]^2) + eps)
// Layer:  out[t] = (x[t] - mean) / sqrt(mean((x[t] - mean)^2) + eps) * weight + bias, then GELU
//
//   x        [n_tokens, dim] float, out [n_tokens, dim] T, rows aligned to 16 bytes
//   add      [n_tokens, dim] T, or null: x += add first, or x += add + add2, and x is written back
//   weight   [n_weights, dim] T: row t has weights t % n_weights; bias [dim] T, or null
//   launch   one block per row, which it keeps in registers (rows.cuh), the last row first: the
//            kernel that wrote x ended there, and the kernel that reads out begins with the first
//            rows, so both may be in L2. With 40 registers per thread, an SM has 3 rows of 8192 at
//            once: it reads some while it sums others
//   maths    f32; sums by thread, then over lanes and warps in fixed order; variance from the
//            deviations
//   moves    n_tokens * dim * (sizeof(float) + sizeof(T)) bytes
//   source   Zhang and Sennrich 2019, arXiv:1910.07467, eq. 4; Ba et al. 2016, arXiv:1607.06450
template <NormKind kKind, typename T>
__global__ void __maxnreg__(40)
    norm_kernel(T* out, float* x, const T* add, const T* add2, const T* weight, const T* bias,
                int dim, unsigned n_weights, float eps) {
  float* const scratch = reinterpret_cast<float*>(ptx::dynamic_shared());
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  const unsigned t = gridDim.x - 1 - blockIdx.x;
  const int64_t first = int64_t{t} * dim;
  if (n_weights > 1) weight += int64_t{t % n_weights} * dim;
  RegisterRow row{.dim = dim};
  float sum = 0;
  row.for_each([&](float(&v)[kChunk], int at) {
    load_chunk(v, x + first + at);
    if (add) {
      float more[kChunk];
      load_chunk(more, add + first + at);
      if (add2) {
        float rest[kChunk];
        load_chunk(rest, add2 + first + at);
#pragma unroll
        for (int i = 0; i < kChunk; ++i) more[i] += rest[i];
      }
#pragma unroll
      for (int i = 0; i < kChunk; ++i) v[i] += more[i];
      store_chunk(x + first + at, v);
    }
#pragma unroll
    for (int i = 0; i < kChunk; ++i) sum += kKind == NormKind::Rms ? v[i] * v[i] : v[i];
  });
  sum = block_reduce(sum, Sum{}, 0, scratch) / static_cast<float>(dim);
  float variance = sum;
  if (kKind != NormKind::Rms) {
    const float mean = sum;
    float squares = 0;
    row.for_each([&](float(&v)[kChunk], int) {
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        v[i] -= mean;
        squares += v[i] * v[i];
      }
    });
    variance = block_reduce(squares, Sum{}, 0, scratch) / static_cast<float>(dim);
  }
  const float scale = rsqrtf(variance + eps);
  row.for_each([&](float(&v)[kChunk], int at) {
    float w[kChunk], b[kChunk] = {};
    load_chunk(w, weight + at);
    if (kKind != NormKind::Rms && bias) load_chunk(b, bias + at);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) v[i] = finish<kKind>(fmaf(v[i] * scale, w[i], b[i]));
    store_chunk(out + first + at, v);
  });
}

// The elements v, normed, times weights, plus biases.
template <NormKind kKind, typename T>
__device__ Vec<T> normed(Vec<T> v, const Vec<T>& weight, const Vec<T>& bias, float mean,
                         float scale) {
#pragma unroll
  for (int i = 0; i < Vec<T>::kSize; ++i) {
    const float x = (to_float(v[i]) - mean) * scale;
    v[i] = from_float<T>(finish<kKind>(fmaf(x, to_float(weight[i]), to_float(bias[i]))));
  }
  return v;
}

constexpr int kPackedNormVecs = 4;  // of a thread

// The same for x [n_tokens, dim] T, which may be out and has no addends
//
//   launch   as there, but the row stays packed: with 40 registers for 32 elements, an SM has
//            4 rows of 11008 at once
//   moves    2 n_tokens * dim * sizeof(T) bytes
template <NormKind kKind, typename T>
__global__ void __maxnreg__(40)
    packed_norm_kernel(T* out, const T* x, const T* weight, const T* bias, int dim,
                       unsigned n_weights, float eps) {
  float* const scratch = reinterpret_cast<float*>(ptx::dynamic_shared());
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  const unsigned t = gridDim.x - 1 - blockIdx.x;
  const int64_t first = int64_t{t} * dim;
  if (n_weights > 1) weight += int64_t{t % n_weights} * dim;
  using Row = PackedRow<T, kPackedNormVecs>;
  using V = typename Row::V;
  Row row(x + first, dim);
  // The sum of f(element) over the row, divided by dim.
  const auto mean_of = [&](auto&& f) {
    float sum = 0;
    row.for_each([&](const V& v, int) {
#pragma unroll
      for (int i = 0; i < V::kSize; ++i) sum += f(to_float(v[i]));
    });
    row.keep();
    return block_reduce(sum, Sum{}, 0, scratch) / static_cast<float>(dim);
  };
  float mean = 0;
  if constexpr (kKind != NormKind::Rms) mean = mean_of([](float v) { return v; });
  const float variance = mean_of([&](float v) { return (v - mean) * (v - mean); });
  const float scale = rsqrtf(variance + eps);
  row.for_each([&](V& v, int at) {
    const V w = reinterpret_cast<const V*>(weight)[at];
    V b{};
    if (kKind != NormKind::Rms && bias) b = reinterpret_cast<const V*>(bias)[at];
    reinterpret_cast<V*>(out + first)[at] = normed<kKind>(v, w, b, mean, scale);
  });
}

constexpr int kShortNormThreads = 256;

// The same for rows of at most 256 elements, such as the heads of a QK-norm: with a block for each,
// 65,536 rows of 128 took 78 us, in which memory moves seven times as much
//
//   x, out   [n_rows, dim] T
//   launch   1 << lanes_log lanes a row, each with 16 bytes; the last rows first, as there
//   maths    f32; each two elements of a lane are summed over lanes, then the four sums: an order
//            that the accumulators of a GEMM have too (norm_heads). Variance from the deviations
//   moves    2 n_rows * dim * sizeof(T) bytes
template <NormKind kKind, typename T>
__global__ void __launch_bounds__(kShortNormThreads)
    short_norm_kernel(T* out, const T* x, const T* weight, const T* bias, int n_rows, int dim,
                      int lanes_log, unsigned n_weights, float eps) {
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  using V = Vec<T>;
  const int lanes = 1 << lanes_log, lane = int(threadIdx.x) & (lanes - 1);
  const int rows_of_block = kShortNormThreads >> lanes_log;
  const int row = int(gridDim.x - 1 - blockIdx.x) * rows_of_block + (int(threadIdx.x) >> lanes_log);
  const bool has_values = row < n_rows && lane < dim / V::kSize;
  const int64_t at = int64_t{row} * (dim / V::kSize) + lane;
  // The mean of all sum_of_two(element, its neighbour) over the row.
  const auto mean_of = [&](const V& v, auto&& sum_of_two) {
    static_assert(V::kSize == 8);
    float sums[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums[i] = has_values ? sum_of_two(to_float(v[2 * i]), to_float(v[2 * i + 1])) : 0.0f;
    }
    for (int d = lanes / 2; d > 0; d /= 2) {
#pragma unroll
      for (float& sum : sums) sum += __shfl_xor_sync(~0u, sum, d);
    }
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) / static_cast<float>(dim);
  };
  V v{};
  if (has_values) v = reinterpret_cast<const V*>(x)[at];
  float mean = 0;
  if constexpr (kKind != NormKind::Rms) mean = mean_of(v, [](float a, float b) { return a + b; });
  const float variance =
      mean_of(v, [&](float a, float b) { return sum_of_squares(a - mean, b - mean); });
  if (!has_values) return;
  const float scale = rsqrtf(variance + eps);
  const V w = reinterpret_cast<const V*>(
      weight)[unsigned(row) % n_weights * (dim / V::kSize) + unsigned(lane)];
  V b{};
  if (kKind != NormKind::Rms && bias) b = reinterpret_cast<const V*>(bias)[lane];
  reinterpret_cast<V*>(out)[at] = normed<kKind>(v, w, b, mean, scale);
}

// The same for any type of x, dim and alignment
//
//   launch   a block of 256 threads a row
//   maths    as there
//   moves    as there, but reads the row two or three times
template <NormKind kKind, typename In, typename Out>
__global__ void __launch_bounds__(256)
    plain_norm_kernel(Out* out, In* x, const Out* add, const Out* add2, const Out* weight,
                      const Out* bias, int dim, unsigned n_weights, float eps) {
  float* const scratch = reinterpret_cast<float*>(ptx::dynamic_shared());
  ptx::wait_for_predecessor();
  const int64_t first = int64_t{blockIdx.x} * dim;
  if (n_weights > 1) weight += int64_t{blockIdx.x % n_weights} * dim;
  float sum = 0;
  for (int i = threadIdx.x; i < dim; i += 256) {
    float v = to_float(x[first + i]);
    if (add) {
      const float more = to_float(add[first + i]);
      v += add2 ? more + to_float(add2[first + i]) : more;
      x[first + i] = from_float<In>(v);
    }
    sum += kKind == NormKind::Rms ? v * v : v;
  }
  sum = block_reduce(sum, Sum{}, 0, scratch) / static_cast<float>(dim);
  float mean = 0, variance = sum;
  if (kKind != NormKind::Rms) {
    mean = sum;
    float squares = 0;
    for (int i = threadIdx.x; i < dim; i += 256) {
      const float v = to_float(x[first + i]) - mean;
      squares += v * v;
    }
    variance = block_reduce(squares, Sum{}, 0, scratch) / static_cast<float>(dim);
  }
  const float scale = rsqrtf(variance + eps);
  for (int i = threadIdx.x; i < dim; i += 256) {
    const float b = kKind != NormKind::Rms && bias ? to_float(bias[i]) : 0;
    const float v = (to_float(x[first + i]) - mean) * scale;
    out[first + i] = from_float<Out>(finish<kKind>(fmaf(v, to_float(weight[i]), b)));
  }
}

// sums[t] = (sum of the squares of x[t], dim)
//
//   x        [n_rows, dim] T; sums [n_rows, 2]
//   launch   a block of 256 threads a row
//   maths    f32; sums by thread, then over lanes and warps in fixed order
//   moves    n_rows * dim * sizeof(T) bytes
template <typename T>
__global__ void __launch_bounds__(256) sum_squares_kernel(float* sums, const T* x, int dim) {
  float* const scratch = reinterpret_cast<float*>(ptx::dynamic_shared());
  ptx::wait_for_predecessor();
  const int64_t first = int64_t{blockIdx.x} * dim;
  float sum = 0;
  for (int i = threadIdx.x; i < dim; i += 256) {
    const float v = to_float(x[first + i]);
    sum += v * v;
  }
  sum = block_reduce(sum, Sum{}, 0, scratch);
  if (threadIdx.x != 0) return;
  sums[2 * int64_t{blockIdx.x}] = sum;
  sums[2 * int64_t{blockIdx.x} + 1] = static_cast<float>(dim);
}

// x[t] *= weight / sqrt(sums[t, 0] / sums[t, 1] + eps)
//
//   x, sums  as above; weight [dim] T
//   launch   a block of 256 threads a row
//   maths    f32, rounded to T
//   moves    2 n_rows * dim * sizeof(T) bytes
template <typename T>
__global__ void __launch_bounds__(256)
    rms_norm_by_sums_kernel(T* x, const float* sums, const T* weight, int dim, float eps) {
  ptx::wait_for_predecessor();
  const int64_t row = blockIdx.x, first = row * dim;
  const float scale = rsqrtf(sums[2 * row] / sums[2 * row + 1] + eps);
  for (int i = threadIdx.x; i < dim; i += 256) {
    x[first + i] = from_float<T>(to_float(x[first + i]) * scale * to_float(weight[i]));
  }
}

template <NormKind kKind>
void norm(cudaStream_t stream, Tensor out, Tensor x, Tensor add, Tensor add2, Tensor weight,
          Tensor bias, float eps) {
  const int64_t dim = x.shape.last(), n_rows = x.n_elements() / dim;
  const auto fits = [&](const Tensor& t) {
    return t.dtype == out.dtype && t.shape.last() == dim && n_rows % (t.n_elements() / dim) == 0;
  };
  MINFER_CHECK(out.shape == x.shape && (x.dtype == DType::F32 || x.dtype == out.dtype) &&
                   fits(weight) && (!bias || (fits(bias) && bias.shape.rank == 1)),
               "norm: x ", x.dtype, " ", x.shape, ", weight ", weight.dtype, " ", weight.shape,
               ", out ", out.dtype, " ", out.shape);
  const auto is_addend = [&](const Tensor& t) {
    return !t || (t.shape == x.shape && t.dtype == out.dtype && x.dtype == DType::F32);
  };
  MINFER_CHECK(is_addend(add) && is_addend(add2), "norm: add ", add.dtype, " ", add.shape, ", ",
               add2.dtype, " ", add2.shape);
  if (n_rows == 0) return;
  const dim3 blocks(narrow<unsigned>(n_rows));
  const auto n_weights = narrow<unsigned>(weight.n_elements() / dim);
  visit_half(out.dtype, [&]<typename T>() {
    using Row = PackedRow<T, kPackedNormVecs>;
    constexpr int64_t kVec = Vec<T>::kSize;
    if (x.dtype != DType::F32 && dim % kVec == 0 && dim <= 32 * kVec && n_rows <= INT_MAX) {
      const auto lanes = std::bit_ceil(narrow<unsigned>(dim / kVec));
      const dim3 grid(narrow<unsigned>(ceil_div(n_rows * lanes, int64_t{kShortNormThreads})));
      return launch(short_norm_kernel<kKind, T>, grid, dim3(kShortNormThreads), 0, stream,
                    data_of<T>(out), data_of<T>(x), data_of<T>(weight), data_of<T>(bias),
                    narrow<int>(n_rows), narrow<int>(dim), std::countr_zero(lanes), n_weights, eps);
    }
    if (x.dtype != DType::F32 && Row::fits(dim)) {
      return launch(packed_norm_kernel<kKind, T>, blocks, dim3(Row::threads(dim)), kReduceBytes,
                    stream, data_of<T>(out), data_of<T>(x), data_of<T>(weight), data_of<T>(bias),
                    narrow<int>(dim), n_weights, eps);
    }
    const auto run = [&]<typename In>(auto kernel, unsigned n_threads) {
      launch(kernel, blocks, dim3(n_threads), kReduceBytes, stream, data_of<T>(out), data_of<In>(x),
             data_of<T>(add), data_of<T>(add2), data_of<T>(weight), data_of<T>(bias),
             narrow<int>(dim), n_weights, eps);
    };
    if (x.dtype != DType::F32) {
      run.template operator()<T>(plain_norm_kernel<kKind, T, T>, 256);
    } else if (fits_register_row(dim)) {
      run.template operator()<float>(norm_kernel<kKind, T>, row_threads(dim));
    } else {
      run.template operator()<float>(plain_norm_kernel<kKind, float, T>, 256);
    }
  });
}

}  // namespace

void rms_norm(cudaStream_t stream, Tensor out, Tensor x, Tensor weight, float eps) {
  norm<NormKind::Rms>(stream, out, x, {}, {}, weight, {}, eps);
}

void add_rms_norm(cudaStream_t stream, Tensor out, Tensor x, Tensor add, Tensor weight, float eps) {
  norm<NormKind::Rms>(stream, out, x, add, {}, weight, {}, eps);
}

void add_parts_rms_norm(cudaStream_t stream, Tensor out, Tensor x, Tensor first, Tensor second,
                        Tensor weight, float eps) {
  norm<NormKind::Rms>(stream, out, x, first, second, weight, {}, eps);
}

namespace {

void check_sums(const Tensor& sums, const Tensor& x) {
  MINFER_CHECK(
      x.shape.rank == 2 && sums.dtype == DType::F32 && sums.shape == Shape({x.shape[0], 2}),
      "sums of squares: x ", x.shape, ", sums ", sums.dtype, " ", sums.shape);
}

}  // namespace

void sum_squares(cudaStream_t stream, Tensor sums, Tensor x) {
  check_sums(sums, x);
  if (x.shape[0] == 0) return;
  visit_half(x.dtype, [&]<typename T>() {
    launch(sum_squares_kernel<T>, dim3(narrow<unsigned>(x.shape[0])), dim3(256), kReduceBytes,
           stream, data_of<float>(sums), data_of<T>(x), narrow<int>(x.shape[1]));
  });
}

void rms_norm_by_sums(cudaStream_t stream, Tensor x, Tensor sums, Tensor weight, float eps) {
  check_sums(sums, x);
  MINFER_CHECK(weight.dtype == x.dtype && weight.shape == Shape{x.shape[1]}, "rms_norm_by_sums: x ",
               x.dtype, " ", x.shape, ", weight ", weight.dtype, " ", weight.shape);
  if (x.shape[0] == 0) return;
  visit_half(x.dtype, [&]<typename T>() {
    launch(rms_norm_by_sums_kernel<T>, dim3(narrow<unsigned>(x.shape[0])), dim3(256), 0, stream,
           data_of<T>(x), data_of<float>(sums), data_of<T>(weight), narrow<int>(x.shape[1]), eps);
  });
}

void layer_norm(cudaStream_t stream, Tensor out, Tensor x, Tensor weight, Tensor bias, float eps) {
  norm<NormKind::Layer>(stream, out, x, {}, {}, weight, bias, eps);
}

void layer_norm_gelu(cudaStream_t stream, Tensor out, Tensor x, Tensor weight, Tensor bias,
                     float eps, GeluKind kind) {
  if (kind == GeluKind::Erf) {
    norm<NormKind::LayerGeluErf>(stream, out, x, {}, {}, weight, bias, eps);
  } else {
    norm<NormKind::LayerGeluTanh>(stream, out, x, {}, {}, weight, bias, eps);
  }
}

}  // namespace minfer::cuda
