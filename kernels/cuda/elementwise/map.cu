#include "kernels/cuda/elementwise/activations.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/ptx.cuh"

namespace minfer::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kVecsPerThread = 4;  // 16-byte accesses under way for each input

struct Identity {
  __device__ float operator()(float x) const { return x; }
};
struct GeluErfOp {
  __device__ float operator()(float x) const { return gelu_erf(x); }
};
struct GeluTanhOp {
  __device__ float operator()(float x) const { return gelu_tanh(x); }
};
struct SiluOp {
  __device__ float operator()(float x) const { return silu(x); }
};
struct SwiGluOp {
  __device__ float operator()(float gate, float up) const { return silu(gate) * up; }
};
struct AddOp {
  __device__ float operator()(float a, float b) const { return a + b; }
};

// out[i] = op(x[i]), op(x[i] + bias[static_cast<uint32_t>(i) % static_cast<uint32_t>(dim)]) where
// there is a bias
//
//   x, out   [n] T; out may be x itself
//   bias     [dim] B, or null; with one kVec divides dim and n is below 2^32
//   launch   kThreads * kVecsPerThread vectors of kVec elements a block; kVec 16 bytes, or 1 where
//            rows are not aligned
//   maths    f32, one rounding to T
//   moves    2 n sizeof(T) bytes
template <typename T, typename B, int kVec, typename Op>
__global__ void __launch_bounds__(kThreads)
    map_kernel(T* out, const T* x, const B* bias, int64_t n, int dim, Op op) {
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  using V = Vec<T, kVec>;
  const int64_t first = (int64_t{blockIdx.x} * kVecsPerThread * kThreads + threadIdx.x);
  Vec<T, kVec> in[kVecsPerThread];
#pragma unroll
  for (int u = 0; u < kVecsPerThread; ++u) {
    const int64_t at = (first + u * kThreads) * kVec;
    if (at + kVec <= n) in[u] = *reinterpret_cast<const V*>(x + at);
  }
#pragma unroll
  for (int u = 0; u < kVecsPerThread; ++u) {
    const int64_t at = (first + u * kThreads) * kVec;
    if (at + kVec > n) {
      for (int64_t i = at; i < n; ++i) {
        out[i] = from_float<T>(
            op(to_float(x[i]) +
               (bias ? to_float(bias[static_cast<uint32_t>(i) % static_cast<uint32_t>(dim)]) : 0)));
      }
      continue;
    }
    if (bias) {
      const uint32_t column = static_cast<uint32_t>(at) % static_cast<uint32_t>(dim);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        in[u][i] = from_float<T>(op(to_float(in[u][i]) + to_float(bias[column + i])));
      }
    } else {
#pragma unroll
      for (int i = 0; i < kVec; ++i) in[u][i] = from_float<T>(op(to_float(in[u][i])));
    }
    *reinterpret_cast<V*>(out + at) = in[u];
  }
}

// out[i] = op(a[i], b[i]); as map_kernel, moves 3 n sizeof(T) bytes
template <typename T, int kVec, typename Op>
__global__ void __launch_bounds__(kThreads)
    zip_kernel(T* out, const T* a, const T* b, int64_t n, Op op) {
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  using V = Vec<T, kVec>;
  const int64_t first = (int64_t{blockIdx.x} * kVecsPerThread * kThreads + threadIdx.x);
  V x[kVecsPerThread], y[kVecsPerThread];
#pragma unroll
  for (int u = 0; u < kVecsPerThread; ++u) {
    const int64_t at = (first + u * kThreads) * kVec;
    if (at + kVec > n) continue;
    x[u] = *reinterpret_cast<const V*>(a + at);
    y[u] = *reinterpret_cast<const V*>(b + at);
  }
#pragma unroll
  for (int u = 0; u < kVecsPerThread; ++u) {
    const int64_t at = (first + u * kThreads) * kVec;
    if (at + kVec > n) {
      for (int64_t i = at; i < n; ++i) out[i] = from_float<T>(op(to_float(a[i]), to_float(b[i])));
      continue;
    }
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      x[u][i] = from_float<T>(op(to_float(x[u][i]), to_float(y[u][i])));
    }
    *reinterpret_cast<V*>(out + at) = x[u];
  }
}

bool aligned16(const Tensor& tensor) { return reinterpret_cast<uintptr_t>(tensor.data) % 16 == 0; }

dim3 map_grid(int64_t n, int vec) {
  return {narrow<unsigned>(ceil_div(n, int64_t{kThreads} * kVecsPerThread * vec))};
}

template <typename T, typename B, typename Op>
void map(cudaStream_t stream, Tensor out, Tensor x, Tensor bias, Op op) {
  const int64_t n = x.n_elements();
  const int dim = narrow<int>(x.shape.last());
  MINFER_CHECK(out.shape == x.shape && out.dtype == x.dtype, "map: ", x.shape, " into ", out.shape);
  MINFER_CHECK(!bias || (bias.shape == Shape({dim}) && n <= UINT32_MAX), "map: bias ", bias.shape,
               " for ", x.shape);
  if (n == 0) return;
  constexpr int kVec = 16 / sizeof(T);
  const bool whole = aligned16(x) && aligned16(out) && (!bias || dim % kVec == 0);
  if (whole) {
    launch(map_kernel<T, B, kVec, Op>, map_grid(n, kVec), dim3(kThreads), 0, stream,
           data_of<T>(out), data_of<T>(x), data_of<B>(bias), n, dim, op);
  } else {
    launch(map_kernel<T, B, 1, Op>, map_grid(n, 1), dim3(kThreads), 0, stream, data_of<T>(out),
           data_of<T>(x), data_of<B>(bias), n, dim, op);
  }
}

template <typename T, typename Op>
void zip(cudaStream_t stream, Tensor out, Tensor a, Tensor b, Op op) {
  MINFER_CHECK(
      out.shape == a.shape && out.shape == b.shape && out.dtype == a.dtype && out.dtype == b.dtype,
      "zip: ", a.dtype, " ", a.shape, " and ", b.dtype, " ", b.shape);
  const int64_t n = a.n_elements();
  if (n == 0) return;
  constexpr int kVec = 16 / sizeof(T);
  const bool whole = aligned16(a) && aligned16(b) && aligned16(out);
  const auto kernel = whole ? zip_kernel<T, kVec, Op> : zip_kernel<T, 1, Op>;
  launch(kernel, map_grid(n, whole ? kVec : 1), dim3(kThreads), 0, stream, data_of<T>(out),
         data_of<T>(a), data_of<T>(b), n, op);
}

}  // namespace

void gelu(cudaStream_t stream, Tensor out, Tensor x, Tensor bias, GeluKind kind) {
  MINFER_CHECK(!bias || bias.dtype == x.dtype, "gelu: bias ", bias.dtype, ", x ", x.dtype);
  visit_half(x.dtype, [&]<typename T>() {
    if (kind == GeluKind::Erf) {
      map<T, T>(stream, out, x, bias, GeluErfOp{});
    } else {
      map<T, T>(stream, out, x, bias, GeluTanhOp{});
    }
  });
}

void silu(cudaStream_t stream, Tensor out, Tensor x) {
  visit_half(x.dtype, [&]<typename T>() { map<T, T>(stream, out, x, {}, SiluOp{}); });
}

void add_bias(cudaStream_t stream, Tensor out, Tensor x, Tensor bias) {
  visit_half(bias.dtype, [&]<typename B>() {
    if (x.dtype == DType::F32) return map<float, B>(stream, out, x, bias, Identity{});
    MINFER_CHECK(x.dtype == bias.dtype, "add_bias: bias ", bias.dtype, ", x ", x.dtype);
    map<B, B>(stream, out, x, bias, Identity{});
  });
}

void swiglu(cudaStream_t stream, Tensor out, Tensor gate, Tensor up) {
  visit_half(out.dtype, [&]<typename T>() { zip<T>(stream, out, gate, up, SwiGluOp{}); });
}

void add(cudaStream_t stream, Tensor out, Tensor a, Tensor b) {
  visit_device_float(out.dtype, [&]<typename T>() { zip<T>(stream, out, a, b, AddOp{}); });
}

}  // namespace minfer::cuda
