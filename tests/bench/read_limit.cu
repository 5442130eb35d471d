#include <algorithm>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/cuda/ptx.cuh"
#include "tests/bench/read_limit.h"

namespace minfer::bench {
namespace {

constexpr int kPieceBytes = 32768, kPieces = 6, kThreads = 256;

__device__ inline void copy_bulk(void* to, const void* from, int n_bytes, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(cuda::ptx::shared_address(to)),
      "l"(from), "r"(n_bytes), "r"(cuda::ptx::shared_address(barrier))
      : "memory");
}

// Reads all pieces of `data`, each block every gridDim.x-th, six under way.
__global__ void read_bulk_kernel(const uint8_t* data, int n_pieces, uint4* out) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) uint8_t ring[];
  __shared__ uint64_t full[kPieces];
  const int n = (n_pieces - int(blockIdx.x) + int(gridDim.x) - 1) / int(gridDim.x);
  const auto begin = [&](int i) {
    const int slot = i % kPieces;
    cuda::ptx::mbarrier_expect(full + slot, kPieceBytes);
    copy_bulk(ring + slot * kPieceBytes,
              data + (int64_t{blockIdx.x} + int64_t{i} * gridDim.x) * kPieceBytes, kPieceBytes,
              full + slot);
  };
  if (threadIdx.x == 0) {
    for (int i = 0; i < kPieces; ++i) cuda::ptx::mbarrier_init(full + i, 1);
    cuda::ptx::mbarrier_init_fence();
    for (int i = 0; i < min(kPieces, n); ++i) begin(i);
  }
  __syncthreads();
  uint4 acc{};
  for (int i = 0; i < n; ++i) {
    const int slot = i % kPieces;
    uint32_t done = 0;
    while (!done) {
      asm volatile(
          "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n"
          "selp.u32 %0, 1, 0, p;\n}"
          : "=r"(done)
          : "r"(cuda::ptx::shared_address(full + slot)), "r"(i / kPieces & 1)
          : "memory");
    }
    for (int j = int(threadIdx.x); j < kPieceBytes / 16; j += kThreads) {
      const uint4 v = reinterpret_cast<const uint4*>(ring + slot * kPieceBytes)[j];
      acc.x ^= v.x, acc.y ^= v.y, acc.z ^= v.z, acc.w ^= v.w;
    }
    __syncthreads();
    if (threadIdx.x == 0 && i + kPieces < n) begin(i + kPieces);
  }
  if (acc.x == 0x12345 && acc.y == 0x54321) out[threadIdx.x] = acc;
#endif
}

// The same through registers.
__global__ void read_stream_kernel(const uint4* data, int64_t n, uint4* out) {
  constexpr int kAtOnce = 8;
  uint4 acc{};
  const int64_t step = int64_t{gridDim.x} * blockDim.x * kAtOnce;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x * kAtOnce + threadIdx.x;
       i + (kAtOnce - 1) * blockDim.x < n; i += step) {
    uint4 v[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) v[j] = __ldcs(data + i + j * blockDim.x);
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      acc.x ^= v[j].x, acc.y ^= v[j].y, acc.z ^= v[j].z, acc.w ^= v[j].w;
    }
  }
  if (acc.x == 0x12345 && acc.y == 0x54321) out[threadIdx.x] = acc;
}

}  // namespace

double read_limit(cudaStream_t stream, const void* data, size_t n_bytes) {
  int device = 0;
  MINFER_CUDA_CHECK(cudaGetDevice(&device));
  cudaDeviceProp card{};
  MINFER_CUDA_CHECK(cudaGetDeviceProperties(&card, device));
  const DeviceTensor sink = cuda::allocate_device(DType::U8, {1 << 16});
  auto* const out = static_cast<uint4*>(sink.view().data);
  constexpr int kShared = kPieceBytes * kPieces;
  const bool has_bulk = card.major >= 9;
  if (has_bulk) {
    MINFER_CUDA_CHECK(cudaFuncSetAttribute(read_bulk_kernel,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  }
  const cuda::Event before = cuda::make_event(), after = cuda::make_event();
  float best = 1e30f;
  for (int run = 0; run < 12; ++run) {
    const bool bulk = has_bulk && run % 2 == 0;
    MINFER_CUDA_CHECK(cudaEventRecord(before.get(), stream));
    if (bulk) {
      read_bulk_kernel<<<unsigned(card.multiProcessorCount), kThreads, kShared, stream>>>(
          static_cast<const uint8_t*>(data), int(n_bytes / kPieceBytes), out);
    } else {
      read_stream_kernel<<<unsigned(card.multiProcessorCount * 4), 512, 0, stream>>>(
          static_cast<const uint4*>(data), int64_t(n_bytes / 16), out);
    }
    MINFER_CUDA_CHECK(cudaGetLastError());
    MINFER_CUDA_CHECK(cudaEventRecord(after.get(), stream));
    MINFER_CUDA_CHECK(cudaEventSynchronize(after.get()));
    float ms = 0;
    MINFER_CUDA_CHECK(cudaEventElapsedTime(&ms, before.get(), after.get()));
    if (run >= 2) best = std::min(best, ms);
  }
  return double(n_bytes) / (double(best) * 1e-3);
}

}  // namespace minfer::bench
