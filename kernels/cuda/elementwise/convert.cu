#include "kernels/cuda/elementwise/rows.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/ptx.cuh"

namespace minfer::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kChunksPerThread = 2;
constexpr int kLoads = 4;  // 16-byte loads that a thread has in flight in find_non_finite_kernel

// out[i] = x[i] in another type, one rounding
//
//   x, out   [8 n_chunks], aligned to 16 bytes
//   launch   a thread converts kChunksPerThread chunks of 8, and reads all before it writes one
//   moves    8 n_chunks (sizeof(In) + sizeof(Out)) bytes
template <typename Out, typename In>
__global__ void __launch_bounds__(kThreads)
    convert_kernel(Out* out, const In* x, int64_t n_chunks) {
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  const int64_t first = int64_t{blockIdx.x} * kThreads * kChunksPerThread + threadIdx.x;
  float values[kChunksPerThread][kChunk];
#pragma unroll
  for (int u = 0; u < kChunksPerThread; ++u) {
    const int64_t at = first + u * kThreads;
    if (at < n_chunks) load_chunk(values[u], x + at * kChunk);
  }
#pragma unroll
  for (int u = 0; u < kChunksPerThread; ++u) {
    const int64_t at = first + u * kThreads;
    if (at < n_chunks) store_chunk(out + at * kChunk, values[u]);
  }
}

// The same for any n and alignment.
template <typename Out, typename In>
__global__ void __launch_bounds__(kThreads) plain_convert_kernel(Out* out, const In* x, int64_t n) {
  ptx::wait_for_predecessor();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) out[i] = from_float<Out>(to_float(x[i]));
}

__global__ void set_kernel(int64_t* value, int64_t to) {
  ptx::wait_for_predecessor();
  *value = to;
}

// *found = min(*found, i) over all i with x[i] not finite
//   launch   a thread checks kLoads vectors of kVec elements
template <int kVec>
__global__ void __launch_bounds__(kThreads)
    find_non_finite_kernel(unsigned long long* found, const float* x, int64_t n) {
  ptx::wait_for_predecessor();
  using V = Vec<float, kVec>;
  const int64_t first = (int64_t{blockIdx.x} * kThreads * kLoads + threadIdx.x) * kVec;
  V v[kLoads] = {};
#pragma unroll
  for (int u = 0; u < kLoads; ++u) {
    const int64_t at = first + u * kThreads * kVec;
    if (at < n) v[u] = *reinterpret_cast<const V*>(x + at);
  }
#pragma unroll
  for (int u = 0; u < kLoads; ++u) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      if (isfinite(v[u][i])) continue;
      atomicMin(found, static_cast<unsigned long long>(first + u * kThreads * kVec + i));
    }
  }
}

}  // namespace

void convert(cudaStream_t stream, Tensor out, Tensor x) {
  MINFER_CHECK(out.shape == x.shape, "convert: ", x.shape, " into ", out.shape);
  const int64_t n = x.n_elements();
  if (n == 0) return;
  const bool whole = n % kChunk == 0 && aligned16(out) && aligned16(x);
  const int64_t n_threads = whole ? ceil_div(n, kChunk * kChunksPerThread) : n;
  visit_device_float(out.dtype, [&]<typename Out>() {
    visit_device_float(x.dtype, [&]<typename In>() {
      launch(whole ? convert_kernel<Out, In> : plain_convert_kernel<Out, In>,
             dim3(narrow<unsigned>(ceil_div(n_threads, kThreads))), dim3(kThreads), 0, stream,
             data_of<Out>(out), data_of<In>(x), whole ? n / kChunk : n);
    });
  });
}

void find_non_finite(cudaStream_t stream, int64_t* found, Tensor x) {
  const int64_t n = x.n_elements();
  launch(set_kernel, dim3(1), dim3(1), 0, stream, found, n);
  if (n == 0) return;
  const bool whole = n % 4 == 0 && aligned16(x);
  launch(whole ? find_non_finite_kernel<4> : find_non_finite_kernel<1>,
         dim3(narrow<unsigned>(ceil_div(n, kThreads * kLoads * (whole ? 4 : 1)))), dim3(kThreads),
         0, stream, reinterpret_cast<unsigned long long*>(found), x.as<const float>(), n);
}

}  // namespace minfer::cuda
