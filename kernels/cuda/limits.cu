#include <algorithm>
#include <bit>

#include "kernels/bench.h"
#include "kernels/cuda/bench/random_tensors.h"
#include "kernels/cuda/bench/timing.h"
#include "kernels/cuda/gemm/cublas.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"

namespace minfer {
namespace cuda {
namespace {

constexpr int64_t kReadBytes = int64_t{6} << 30;
constexpr int64_t kCopyBytes = int64_t{8} << 30;  // at most, and a quarter of free memory
constexpr int kRounds = 1000;                     // barriers or launches in a timed interval

// Reads n vectors and writes nothing; the sum keeps the loads alive.
//   launch   any grid; each thread has kUnroll loads of 16 bytes in flight
template <int kUnroll>
__global__ void read_kernel(const uint4* from, int64_t n, uint4* sink) {
  uint4 sum{0, 0, 0, 0};
  const int64_t stride = int64_t{gridDim.x} * blockDim.x * kUnroll;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x * kUnroll + threadIdx.x;
       i + (kUnroll - 1) * int64_t{blockDim.x} < n; i += stride) {
    uint4 v[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) v[u] = __ldcs(from + i + u * blockDim.x);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      sum.x ^= v[u].x;
      sum.y ^= v[u].y;
      sum.z ^= v[u].z;
      sum.w ^= v[u].w;
    }
  }
  if (sum.x == 0x12345 && sum.y == 0x54321) sink[threadIdx.x] = sum;
}

// The same by bulk copies into a ring of kStages stages of kPiece bytes in shared memory.
template <int kPiece, int kStages>
__global__ void bulk_read_kernel(const char* from, int64_t n_bytes, uint4* sink) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char ring[];
  __shared__ uint64_t full[kStages];
  const int64_t n_pieces = n_bytes / kPiece;
  const int64_t n_own = (n_pieces - blockIdx.x + gridDim.x - 1) / gridDim.x;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) ptx::mbarrier_init(full + s, 1);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  const auto start = [&](int64_t i) {
    const int slot = static_cast<int>(i % kStages);
    ptx::mbarrier_expect(full + slot, kPiece);
    ptx::bulk_copy(ring + slot * kPiece, from + (blockIdx.x + i * gridDim.x) * kPiece, kPiece,
                   full + slot);
  };
  if (threadIdx.x == 0) {
    for (int64_t i = 0; i < kStages && i < n_own; ++i) start(i);
  }
  uint4 sum{0, 0, 0, 0};
  for (int64_t i = 0; i < n_own; ++i) {
    const int slot = static_cast<int>(i % kStages);
    ptx::mbarrier_wait(full + slot, static_cast<int>(i / kStages % 2));
    for (int at = threadIdx.x; at < kPiece / 16; at += blockDim.x) {
      const uint4 v = reinterpret_cast<const uint4*>(ring + slot * kPiece)[at];
      sum.x ^= v.x;
      sum.y ^= v.y;
      sum.z ^= v.z;
      sum.w ^= v.w;
    }
    __syncthreads();
    if (threadIdx.x == 0 && i + kStages < n_own) start(i + kStages);
  }
  if (sum.x == 0x12345 && sum.y == 0x54321) sink[threadIdx.x] = sum;
#endif
}

// to[i] = from[i] for kUnroll vectors per thread.
//   launch   one block for each kUnroll * blockDim.x vectors; a thread's loads are all in flight
template <int kUnroll>
__global__ void copy_kernel(uint4* to, const uint4* from) {
  const int64_t first = int64_t{blockIdx.x} * blockDim.x * kUnroll + threadIdx.x;
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  uint4 v[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) v[u] = from[first + u * blockDim.x];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) to[first + u * blockDim.x] = v[u];
}

// Runs n barriers of the whole grid: one thread of each block adds to a counter and polls it.
__global__ void barrier_kernel(unsigned* counter, int n) {
  for (int i = 0; i < n; ++i) {
    __syncthreads();
    if (threadIdx.x == 0) {
      const unsigned target = static_cast<unsigned>(i + 1) * gridDim.x;
      __threadfence();
      atomicAdd(counter, 1);
      while (*static_cast<volatile unsigned*>(counter) < target) {
      }
      __threadfence();
    }
    __syncthreads();
  }
}

__global__ void empty_kernel() {
  ptx::wait_for_predecessor();
  ptx::let_successor_begin();
}

class LimitProbe {
 public:
  explicit LimitProbe(int device) : device_(use_device(device)) {}

  const DeviceProperties& device() const { return device_; }

  double read_bytes_per_second() {
    const DeviceTensor memory = allocate_device(DType::U8, {kReadBytes});
    MINFER_CUDA_CHECK(cudaMemsetAsync(memory.view().data, 7, size_t(kReadBytes), stream_.get()));
    const DeviceTensor sink = allocate_device(DType::U8, {1 << 20});
    auto* const from = static_cast<const uint4*>(memory.view().data);
    auto* const to = static_cast<uint4*>(sink.view().data);
    double best = 1e9;
    for (const auto& [blocks, threads] : {std::pair{4, 512}, {2, 512}, {2, 1024}}) {
      best = std::min(
          best, median_seconds([&] {
            read_kernel<8>
                <<<unsigned(device_.n_sms * blocks), unsigned(threads), 0, stream_.get()>>>(
                    from, kReadBytes / 16, to);
          }));
    }
    if (kernels_are_of_sm90()) {
      best = std::min(best, bulk_seconds<32 << 10, 6>(from, to));
      best = std::min(best, bulk_seconds<16 << 10, 12>(from, to));
    }
    return double(kReadBytes) / best;
  }

  // Copies are timed as kernels are: successive tensors in a graph, each of which has left L2 when
  // its turn comes again. The driver and a kernel copy tensors of the size of those of a prompt,
  // and larger ones; the fastest of all is the limit.
  double copy_bytes_per_second() {
    size_t n_free = 0, n_all = 0;
    MINFER_CUDA_CHECK(cudaMemGetInfo(&n_free, &n_all));
    const auto n_bytes = std::min(kCopyBytes, int64_t(std::bit_floor(n_free / 4)));
    const DeviceTensor from = random_tensor(DType::F16, {n_bytes / 2});
    const DeviceTensor to = allocate_device(DType::U8, {n_bytes});
    const auto seconds_in_pieces_of = [&](int64_t piece, const auto& copy) {
      return graph_us(stream_.get(), 1,
                      [&] {
                        for (int64_t at = 0; at < n_bytes; at += piece) {
                          copy(static_cast<char*>(to.view().data) + at,
                               static_cast<const char*>(from.view().data) + at, piece);
                        }
                      }) *
             1e-6;
    };
    const auto copy_by_driver = [&](char* out, const char* in, int64_t n) {
      MINFER_CUDA_CHECK(
          cudaMemcpyAsync(out, in, size_t(n), cudaMemcpyDeviceToDevice, stream_.get()));
    };
    const auto copy_by_kernel = [&](char* out, const char* in, int64_t n) {
      constexpr int kThreads = 256, kUnroll = 4;
      launch(copy_kernel<kUnroll>, dim3(narrow<unsigned>(n / (16 * kUnroll * kThreads))),
             dim3(kThreads), 0, stream_.get(), reinterpret_cast<uint4*>(out),
             reinterpret_cast<const uint4*>(in));
    };
    double best = 1e9;
    for (const int64_t piece : {int64_t{64} << 20, int64_t{512} << 20, n_bytes}) {
      if (piece > n_bytes) continue;
      best = std::min(best, seconds_in_pieces_of(piece, copy_by_driver));
      best = std::min(best, seconds_in_pieces_of(piece, copy_by_kernel));
    }
    return 2.0 * double(n_bytes) / best;
  }

  double barrier_seconds() {
    const DeviceTensor counter = allocate_device(DType::F32, {1});
    auto* p = static_cast<unsigned*>(counter.view().data);
    int n = kRounds;
    void* arguments[] = {&p, &n};
    return median_seconds([&] {
             MINFER_CUDA_CHECK(cudaMemsetAsync(p, 0, sizeof(unsigned), stream_.get()));
             MINFER_CUDA_CHECK(cudaLaunchCooperativeKernel(
                 reinterpret_cast<const void*>(barrier_kernel), dim3(unsigned(device_.n_sms)),
                 dim3(512), arguments, 0, stream_.get()));
           }) /
           kRounds;
  }

  // The time per kernel of a graph of empty kernels, with PDL or without.
  double launch_seconds(bool dependent) {
    const GraphExec graph = capture_graph(stream_.get(), [&] {
      for (int i = 0; i < kRounds; ++i) {
        if (dependent) {
          launch(empty_kernel, dim3(unsigned(device_.n_sms)), dim3(256), 0, stream_.get());
        } else {
          empty_kernel<<<unsigned(device_.n_sms), 256, 0, stream_.get()>>>();
        }
      }
    });
    return median_seconds([&] { MINFER_CUDA_CHECK(cudaGraphLaunch(graph.get(), stream_.get())); }) /
           kRounds;
  }

  // Runs many GEMMs in a row, because a card under load has a lower clock than for one GEMM alone.
  double hgemm_flops_per_second(Cublas& cublas, int64_t size) {
    const DeviceTensor x = random_tensor(DType::F16, {size, size});
    const DeviceTensor w = random_tensor(DType::F16, {size, size});
    const DeviceTensor out = allocate_device(DType::F16, {size, size});
    const double flops = 2.0 * double(size) * double(size) * double(size);
    const int n = std::max(2, static_cast<int>(1e13 / flops));
    return flops /
           graph_us(stream_.get(), n,
                    [&] {
                      for (int i = 0; i < n; ++i) cublas.gemm(out, x, w, false);
                    }) *
           1e6;
  }

  cudaStream_t stream() const { return stream_.get(); }

 private:
  template <int kPiece, int kStages>
  double bulk_seconds(const uint4* from, uint4* sink) {
    const auto kernel = bulk_read_kernel<kPiece, kStages>;
    MINFER_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           kPiece * kStages));
    return median_seconds([&] {
      kernel<<<unsigned(device_.n_sms), 256, kPiece * kStages, stream_.get()>>>(
          reinterpret_cast<const char*>(from), kReadBytes, sink);
    });
  }

  template <typename F>
  double median_seconds(const F& work) {
    return timer_.median_us(work) * 1e-6;
  }

  DeviceProperties device_;
  Stream stream_ = make_stream();
  StreamTimer timer_{stream_.get()};
};

}  // namespace
}  // namespace cuda

CudaLimits measure_cuda_limits(int device) {
  cuda::LimitProbe probe(device);
  CudaLimits limits{.card = probe.device().name,
                    .read_bytes_per_second = probe.read_bytes_per_second(),
                    .copy_bytes_per_second = probe.copy_bytes_per_second(),
                    .barrier_seconds = probe.barrier_seconds(),
                    .launch_seconds = probe.launch_seconds(false),
                    .dependent_launch_seconds = probe.launch_seconds(true)};
  std::optional<cuda::Cublas> cublas;
  try {
    cublas.emplace(probe.stream());
  } catch (const Error& e) {
    limits.no_cublas = e.what();
    return limits;
  }
  for (int64_t size : {4096, 8192}) {
    limits.hgemm.push_back({size, probe.hgemm_flops_per_second(*cublas, size)});
  }
  return limits;
}

double measure_cuda_read_bandwidth(int device) {
  return cuda::LimitProbe(device).read_bytes_per_second();
}

}  // namespace minfer
