#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/ptx.cuh"

namespace minfer::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPerThread = 8;

// out[i] = x[i] in another type, one rounding
//   moves    n (sizeof(In) + sizeof(Out)) bytes
template <typename Out, typename In>
__global__ void __launch_bounds__(kThreads) convert_kernel(Out* out, const In* x, int64_t n) {
  ptx::wait_for_predecessor();
  const int64_t first = int64_t{blockIdx.x} * kThreads * kPerThread + threadIdx.x;
#pragma unroll
  for (int u = 0; u < kPerThread; ++u) {
    const int64_t i = first + u * kThreads;
    if (i < n) out[i] = from_float<Out>(to_float(x[i]));
  }
}

__global__ void set_kernel(int64_t* value, int64_t to) {
  ptx::wait_for_predecessor();
  *value = to;
}

// *found = min(*found, i) over all i with x[i] not finite
__global__ void __launch_bounds__(kThreads)
    find_non_finite_kernel(unsigned long long* found, const float* x, int64_t n) {
  ptx::wait_for_predecessor();
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * kThreads) {
    if (!isfinite(x[i])) atomicMin(found, static_cast<unsigned long long>(i));
  }
}

}  // namespace

void convert(cudaStream_t stream, Tensor out, Tensor x) {
  MINFER_CHECK(out.shape == x.shape, "convert: ", x.shape, " into ", out.shape);
  const int64_t n = x.n_elements();
  if (n == 0) return;
  const dim3 grid(narrow<unsigned>(ceil_div(n, kThreads * kPerThread)));
  visit_device_float(out.dtype, [&]<typename Out>() {
    visit_device_float(x.dtype, [&]<typename In>() {
      launch(convert_kernel<Out, In>, grid, dim3(kThreads), 0, stream, data_of<Out>(out),
             data_of<In>(x), n);
    });
  });
}

void find_non_finite(cudaStream_t stream, int64_t* found, Tensor x) {
  const int64_t n = x.n_elements();
  launch(set_kernel, dim3(1), dim3(1), 0, stream, found, n);
  if (n == 0) return;
  const dim3 grid(narrow<unsigned>(std::min<int64_t>(ceil_div(n, kThreads), 1024)));
  launch(find_non_finite_kernel, grid, dim3(kThreads), 0, stream,
         reinterpret_cast<unsigned long long*>(found), x.as<const float>(), n);
}

}  // namespace minfer::cuda
