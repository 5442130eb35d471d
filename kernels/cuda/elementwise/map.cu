#include "kernels/cuda/elementwise/activations.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/ptx.cuh"

namespace minfer::cuda {
namespace {

constexpr int kMapThreads = 1024;  // most of a block; large blocks with one vector a thread are
                                   // 2 % faster than small ones with four
constexpr int kZipThreads = 256;
constexpr int kVecsPerThread = 4;  // of zip_kernel: 16-byte loads in flight for each input

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

// out[t, i] = op(x[t, i] + bias[i])
//
//   x, out   [n_rows, dim] T, n = n_rows * dim; out may be x itself. Without a bias, dim is the
//            number of elements of a block, and the last row may be shorter
//   bias     [dim] B, or null: nothing is added
//   launch   a thread maps a vector; n_column_blocks blocks share a row. A vector is 16 bytes, or
//            one element if rows are not aligned
//   maths    f32, one rounding to T
//   moves    2 n sizeof(T) bytes
template <typename T, typename B, int kVec, typename Op>
__global__ void __launch_bounds__(kMapThreads, 2)
    map_kernel(T* out, const T* x, const B* bias, int64_t n, int dim, unsigned n_column_blocks,
               Op op) {
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  using V = Vec<T, kVec>;
  const unsigned column_block = blockIdx.x % n_column_blocks;
  const int column = static_cast<int>(column_block * blockDim.x + threadIdx.x) * kVec;
  const int64_t at = int64_t{blockIdx.x / n_column_blocks} * dim + column;
  if (column >= dim || at >= n) return;
  V v = *reinterpret_cast<const V*>(x + at);
  float addend[kVec] = {};
  if (bias) {
    const auto b = *reinterpret_cast<const Vec<B, kVec>*>(bias + column);
#pragma unroll
    for (int i = 0; i < kVec; ++i) addend[i] = to_float(b[i]);
  }
#pragma unroll
  for (int i = 0; i < kVec; ++i) v[i] = from_float<T>(op(to_float(v[i]) + addend[i]));
  *reinterpret_cast<V*>(out + at) = v;
}

// out[i] = op(a[i], b[i])
//
//   a, b, out  n elements of T; out may be a or b
//   launch     as map_kernel without a bias
//   maths      f32, one rounding to T
//   moves      3 n sizeof(T) bytes
template <typename T, int kVec, typename Op>
__global__ void __launch_bounds__(kZipThreads, 4)
    zip_kernel(T* out, const T* a, const T* b, int64_t n, Op op) {
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  using V = Vec<T, kVec>;
  const int64_t first = (int64_t{blockIdx.x} * kVecsPerThread * kZipThreads + threadIdx.x) * kVec;
  V x[kVecsPerThread], y[kVecsPerThread];
#pragma unroll
  for (int u = 0; u < kVecsPerThread; ++u) {
    const int64_t at = first + u * kZipThreads * kVec;
    if (at >= n) continue;
    x[u] = *reinterpret_cast<const V*>(a + at);
    y[u] = *reinterpret_cast<const V*>(b + at);
  }
#pragma unroll
  for (int u = 0; u < kVecsPerThread; ++u) {
    const int64_t at = first + u * kZipThreads * kVec;
    if (at >= n) break;
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      x[u][i] = from_float<T>(op(to_float(x[u][i]), to_float(y[u][i])));
    }
    *reinterpret_cast<V*>(out + at) = x[u];
  }
}

template <typename T, typename B, typename Op>
void map(cudaStream_t stream, Tensor out, Tensor x, Tensor bias, Op op) {
  const int64_t n = x.n_elements(), dim = x.shape.last();
  MINFER_CHECK(out.shape == x.shape && out.dtype == x.dtype, "map: ", x.shape, " into ", out.shape);
  MINFER_CHECK(!bias || bias.shape == Shape({dim}), "map: bias ", bias.shape, " for ", x.shape);
  if (n == 0) return;
  const auto run = [&]<int kVec>() {
    const int64_t vecs = bias ? ceil_div(dim, int64_t{kVec}) : kMapThreads;  // of a row
    const int64_t n_column_blocks = ceil_div(vecs, int64_t{kMapThreads});
    const int64_t n_threads = align_up(ceil_div(vecs, n_column_blocks), 32);
    const int64_t columns = bias ? dim : vecs * kVec;
    launch(map_kernel<T, B, kVec, Op>,
           dim3(narrow<unsigned>(n_column_blocks * ceil_div(n, columns))),
           dim3(narrow<unsigned>(n_threads)), 0, stream, data_of<T>(out), data_of<T>(x),
           data_of<B>(bias), n, narrow<int>(columns), narrow<unsigned>(n_column_blocks), op);
  };
  constexpr int kVec = 16 / sizeof(T);
  const bool whole =
      (bias ? dim : n) % kVec == 0 && aligned16(x) && aligned16(out) && (!bias || aligned16(bias));
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
           dim3(narrow<unsigned>(ceil_div(n, int64_t{kZipThreads} * kVecsPerThread * kVec))),
           dim3(kZipThreads), 0, stream, data_of<T>(out), data_of<T>(a), data_of<T>(b), n, op);
  };
  constexpr int kVec = 16 / sizeof(T);
  const bool whole = n % kVec == 0 && aligned16(a) && aligned16(b) && aligned16(out);
  whole ? run.template operator()<kVec>() : run.template operator()<1>();
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
    map<float, float>(stream, x, x, {}, SoftCapOp{scale, softcap});
  } else {
    map<float, float>(stream, x, x, {}, ScaleOp{scale});
  }
}

void add(cudaStream_t stream, Tensor out, Tensor a, Tensor b) {
  visit_device_float(out.dtype, [&]<typename T>() { zip<T>(stream, out, a, b, AddOp{}); });
}

}  // namespace minfer::cuda
