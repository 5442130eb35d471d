#include "kernels/cuda/elementwise/activations.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/ptx.cuh"

namespace minfer::cuda {
namespace {

constexpr int kMapThreads = 512;  // one vector each: 2 % faster than small blocks with four each
constexpr int kThreads = 256;
constexpr int kVecsPerThread = 4;  // 16-byte loads in flight for each input

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
template <typename Op>
struct GluOp {
  __device__ float operator()(float gate, float up) const { return Op{}(gate)*up; }
};
struct ClampedSwiGluOp {
  SwiGluClamp clamp;
  __device__ float operator()(float gate, float up) const { return swiglu(gate, up, clamp); }
};
struct ScaleOp {
  float scale;
  __device__ float operator()(float x) const { return scale * x; }
};
struct SoftCapOp {
  float scale, cap;
  __device__ float operator()(float x) const { return cap * tanhf(scale * x / cap); }
};
struct AddOp {
  __device__ float operator()(float a, float b) const { return a + b; }
};

// out[i] = op(x[i])
//
//   x, out   n elements of T; out may be x
//   launch   a thread maps a vector of 16 bytes, or one element if x or out is not aligned
//   maths    f32, one rounding to T
//   moves    2 n sizeof(T) bytes
template <typename T, int kVec, typename Op>
__global__ void __launch_bounds__(kMapThreads) map_kernel(T* out, const T* x, int64_t n, Op op) {
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  using V = Vec<T, kVec>;
  const int64_t at = (int64_t{blockIdx.x} * kMapThreads + threadIdx.x) * kVec;
  if (at >= n) return;
  V v = *reinterpret_cast<const V*>(x + at);
#pragma unroll
  for (int i = 0; i < kVec; ++i) v[i] = from_float<T>(op(to_float(v[i])));
  *reinterpret_cast<V*>(out + at) = v;
}

// out[t, i] = op(x[t, i] + bias[i])
//
//   x, out   [n_rows, dim] T, n = n_rows * dim; out may be x
//   bias     [dim] B
//   launch   a block maps kThreads vectors of each of kVecsPerThread rows, which share the bias;
//            successive blocks take the columns of the same rows. Vectors as in map_kernel
//   maths    f32, one rounding to T
//   moves    2 n sizeof(T) bytes
template <typename T, typename B, int kVec, typename Op>
__global__ void __launch_bounds__(kThreads, 6)
    biased_map_kernel(T* out, const T* x, const B* bias, int64_t n, int dim,
                      unsigned n_column_blocks, Op op) {
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  using V = Vec<T, kVec>;
  const unsigned column_block = blockIdx.x % n_column_blocks;
  const int column = static_cast<int>(column_block * kThreads + threadIdx.x) * kVec;
  if (column >= dim) return;
  const int64_t first = int64_t{blockIdx.x / n_column_blocks} * kVecsPerThread * dim + column;
  V in[kVecsPerThread];
#pragma unroll
  for (int u = 0; u < kVecsPerThread; ++u) {
    const int64_t at = first + int64_t{u} * dim;
    if (at < n) in[u] = *reinterpret_cast<const V*>(x + at);
  }
  const auto addend = *reinterpret_cast<const Vec<B, kVec>*>(bias + column);
#pragma unroll
  for (int u = 0; u < kVecsPerThread; ++u) {
    const int64_t at = first + int64_t{u} * dim;
    if (at >= n) break;
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      in[u][i] = from_float<T>(op(to_float(in[u][i]) + to_float(addend[i])));
    }
    *reinterpret_cast<V*>(out + at) = in[u];
  }
}

// out[i] = op(a[i], b[i])
//
//   a, b, out  n elements of T; out may be a or b
//   launch     a block zips kVecsPerThread * kThreads vectors (as in map_kernel)
//   maths      f32, one rounding to T
//   moves      3 n sizeof(T) bytes
template <typename T, int kVec, typename Op>
__global__ void __launch_bounds__(kThreads, 4)
    zip_kernel(T* out, const T* a, const T* b, int64_t n, Op op) {
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  using V = Vec<T, kVec>;
  const int64_t first = (int64_t{blockIdx.x} * kVecsPerThread * kThreads + threadIdx.x) * kVec;
  V x[kVecsPerThread], y[kVecsPerThread];
#pragma unroll
  for (int u = 0; u < kVecsPerThread; ++u) {
    const int64_t at = first + u * kThreads * kVec;
    if (at >= n) continue;
    x[u] = *reinterpret_cast<const V*>(a + at);
    y[u] = *reinterpret_cast<const V*>(b + at);
  }
#pragma unroll
  for (int u = 0; u < kVecsPerThread; ++u) {
    const int64_t at = first + u * kThreads * kVec;
    if (at >= n) break;
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      x[u][i] = from_float<T>(op(to_float(x[u][i]), to_float(y[u][i])));
    }
    *reinterpret_cast<V*>(out + at) = x[u];
  }
}

template <typename T, typename Op>
void map(cudaStream_t stream, Tensor out, Tensor x, Op op) {
  const int64_t n = x.n_elements();
  MINFER_CHECK(out.shape == x.shape && out.dtype == x.dtype, "map: ", x.shape, " into ", out.shape);
  if (n == 0) return;
  const auto run = [&]<int kVec>() {
    launch(map_kernel<T, kVec, Op>,
           dim3(narrow<unsigned>(ceil_div(n, int64_t{kMapThreads} * kVec))), dim3(kMapThreads), 0,
           stream, data_of<T>(out), data_of<T>(x), n, op);
  };
  constexpr int kVec = 16 / sizeof(T);
  const bool whole = n % kVec == 0 && aligned16(x) && aligned16(out);
  whole ? run.template operator()<kVec>() : run.template operator()<1>();
}

template <typename T, typename B, typename Op>
void biased_map(cudaStream_t stream, Tensor out, Tensor x, Tensor bias, Op op) {
  const int64_t n = x.n_elements(), dim = x.shape.last();
  MINFER_CHECK(out.shape == x.shape && out.dtype == x.dtype && bias.shape == Shape({dim}),
               "map: ", x.shape, " and bias ", bias.shape, " into ", out.shape);
  if (n == 0) return;
  const auto run = [&]<int kVec>() {
    const int64_t n_column_blocks = ceil_div(dim, int64_t{kThreads} * kVec);
    const int64_t n_row_blocks = ceil_div(n, dim * kVecsPerThread);
    launch(biased_map_kernel<T, B, kVec, Op>,
           dim3(narrow<unsigned>(n_column_blocks * n_row_blocks)), dim3(kThreads), 0, stream,
           data_of<T>(out), data_of<T>(x), data_of<B>(bias), n, narrow<int>(dim),
           narrow<unsigned>(n_column_blocks), op);
  };
  constexpr int kVec = 16 / sizeof(T);
  const bool whole = dim % kVec == 0 && aligned16(x) && aligned16(out) && aligned16(bias);
  whole ? run.template operator()<kVec>() : run.template operator()<1>();
}

template <typename T, typename Op>
void zip(cudaStream_t stream, Tensor out, Tensor a, Tensor b, Op op) {
  MINFER_CHECK(
      out.shape == a.shape && out.shape == b.shape && out.dtype == a.dtype && out.dtype == b.dtype,
      "zip: ", a.dtype, " ", a.shape, " and ", b.dtype, " ", b.shape);
  const int64_t n = a.n_elements();
  if (n == 0) return;
  const auto run = [&]<int kVec>() {
    launch(zip_kernel<T, kVec, Op>,
           dim3(narrow<unsigned>(ceil_div(n, int64_t{kThreads} * kVecsPerThread * kVec))),
           dim3(kThreads), 0, stream, data_of<T>(out), data_of<T>(a), data_of<T>(b), n, op);
  };
  constexpr int kVec = 16 / sizeof(T);
  const bool whole = n % kVec == 0 && aligned16(a) && aligned16(b) && aligned16(out);
  whole ? run.template operator()<kVec>() : run.template operator()<1>();
}

}  // namespace

void gelu(cudaStream_t stream, Tensor out, Tensor x, Tensor bias, GeluKind kind) {
  MINFER_CHECK(!bias || bias.dtype == x.dtype, "gelu: bias ", bias.dtype, ", x ", x.dtype);
  visit_half(x.dtype, [&]<typename T>() {
    const auto run = [&](auto op) {
      bias ? biased_map<T, T>(stream, out, x, bias, op) : map<T>(stream, out, x, op);
    };
    kind == GeluKind::Erf ? run(GeluErfOp{}) : run(GeluTanhOp{});
  });
}

void silu(cudaStream_t stream, Tensor out, Tensor x) {
  visit_half(x.dtype, [&]<typename T>() { map<T>(stream, out, x, SiluOp{}); });
}

void add_bias(cudaStream_t stream, Tensor out, Tensor x, Tensor bias) {
  visit_half(bias.dtype, [&]<typename B>() {
    if (x.dtype == DType::F32) return biased_map<float, B>(stream, out, x, bias, Identity{});
    MINFER_CHECK(x.dtype == bias.dtype, "add_bias: bias ", bias.dtype, ", x ", x.dtype);
    biased_map<B, B>(stream, out, x, bias, Identity{});
  });
}

void glu(cudaStream_t stream, Tensor out, Tensor gate, Tensor up, Activation activation,
         const SwiGluClamp& clamp) {
  visit_half(out.dtype, [&]<typename T>() {
    switch (activation) {
      case Activation::Silu:
        return zip<T>(stream, out, gate, up, GluOp<SiluOp>{});
      case Activation::GeluErf:
        return zip<T>(stream, out, gate, up, GluOp<GeluErfOp>{});
      case Activation::GeluTanh:
        return zip<T>(stream, out, gate, up, GluOp<GeluTanhOp>{});
      case Activation::ClampedSwiGlu:
        MINFER_CHECK(clamp.limit > 0, "glu: a limit of ", clamp.limit);
        return zip<T>(stream, out, gate, up, ClampedSwiGluOp{clamp});
    }
  });
}

void scale_and_cap(cudaStream_t stream, Tensor x, float scale, float softcap) {
  MINFER_CHECK(x.dtype == DType::F32 && softcap >= 0, "scale_and_cap: x ", x.dtype, ", a cap of ",
               softcap);
  if (softcap > 0) {
    map<float>(stream, x, x, SoftCapOp{scale, softcap});
  } else {
    map<float>(stream, x, x, ScaleOp{scale});
  }
}

void add(cudaStream_t stream, Tensor out, Tensor a, Tensor b) {
  visit_device_float(out.dtype, [&]<typename T>() { zip<T>(stream, out, a, b, AddOp{}); });
}

}  // namespace minfer::cuda
