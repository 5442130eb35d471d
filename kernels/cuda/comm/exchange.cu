#include "kernels/cuda/check.h"
#include "kernels/cuda/comm/wait.cuh"

namespace minfer::cuda {
namespace {

constexpr int kThreads = 512;

// A warp, of which lane i waits for rank i. A rank counts in its own entry of its mailbox.
__global__ void barrier_kernel(const __grid_constant__ Ranks r) {
  const int peer = int(threadIdx.x);
  uint64_t* const barriers = r.mailbox[r.rank].barriers;
  const uint64_t here = barriers[r.rank] + 1;
  __syncwarp();  // all have read it
  if (peer == r.rank) barriers[r.rank] = here;
  if (peer >= r.n_ranks || peer == r.rank) return;
  store_release(r.mailbox[peer].barriers + r.rank, here);
  wait_for_count(r, barriers + peer, here, peer);
}

__global__ void send_columns_kernel(OfRanks outs, int n_ranks, const float* part,
                                    int64_t n_elements, int width, int begin, int n) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n_elements) return;
  const int64_t row = i / width, at = row * n + begin + (i - row * width);
  const float value = part[i];
  for (int rank = 0; rank < n_ranks; ++rank) static_cast<float*>(outs.of_rank[rank])[at] = value;
}

__device__ inline uint4 pattern(int i, uint32_t seed) {
  const uint32_t x = (uint32_t(i) + 1) * 2654435761u ^ seed;
  return {x, x * 2246822519u, ~x, x ^ 0xa5a5a5a5u};
}
__global__ void write_pattern_kernel(uint4* to, int n, uint32_t seed) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i < n) to[i] = pattern(i, seed);
}
__global__ void count_wrong_kernel(const uint4* from, int n, uint32_t seed, int* n_wrong) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= n) return;
  const uint4 got = from[i], want = pattern(i, seed);
  if (got.x != want.x || got.y != want.y || got.z != want.z || got.w != want.w) {
    atomicAdd(n_wrong, 1);
  }
}

unsigned blocks_for(int64_t n) { return unsigned((n + kThreads - 1) / kThreads); }

}  // namespace

void cards_barrier(cudaStream_t stream, const Ranks& ranks) {
  barrier_kernel<<<1, 32, 0, stream>>>(ranks);
  MINFER_CUDA_CHECK(cudaGetLastError());
}

void send_columns(cudaStream_t stream, const Ranks& ranks, const OfRanks& outs, const float* part,
                  int n_rows, int width, int begin, int n) {
  const int64_t n_elements = int64_t{n_rows} * width;
  if (n_elements == 0) return;
  send_columns_kernel<<<blocks_for(n_elements), kThreads, 0, stream>>>(outs, ranks.n_ranks, part,
                                                                       n_elements, width, begin, n);
  MINFER_CUDA_CHECK(cudaGetLastError());
}

void write_pattern(cudaStream_t stream, uint4* to, int n, uint32_t seed) {
  write_pattern_kernel<<<blocks_for(n), kThreads, 0, stream>>>(to, n, seed);
  MINFER_CUDA_CHECK(cudaGetLastError());
}

void count_wrong(cudaStream_t stream, const uint4* from, int n, uint32_t seed, int* n_wrong) {
  count_wrong_kernel<<<blocks_for(n), kThreads, 0, stream>>>(from, n, seed, n_wrong);
  MINFER_CUDA_CHECK(cudaGetLastError());
}

}  // namespace minfer::cuda
