// All-reduces between the cards of this machine: one JSON line for each size, with the time of one
// of many in a row and the bus bandwidth, 2 (n - 1) / n of the bytes over the time.
//   cuda_ranks_bench [n_ranks]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kernels/comm/communicator.h"
#include "kernels/comm/rank_group.h"

namespace minfer {
namespace {

double seconds_of(RankGroup& group, std::vector<DeviceTensor>& tensors, int64_t n, int times) {
  double seconds = 0;
  group.run([&](int rank) {
    Backend& own = group.backend(rank);
    const Tensor whole = tensors[size_t(rank)].view();
    const Tensor x{whole.data, whole.dtype, {1, n}};
    const auto all = [&](int count) {
      for (int i = 0; i < count; ++i) own.communicator()->all_reduce(x);
      own.synchronize();
    };
    all(3);
    const auto start = std::chrono::steady_clock::now();
    all(times);
    if (rank == 0) {
      seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
  });
  group.check();
  return seconds / times;
}

void run(int n_ranks) {
  std::vector<std::unique_ptr<Backend>> backends;
  for (int rank = 0; rank < n_ranks; ++rank)
    backends.push_back(make_cuda_backend({.device = rank}));
  const auto first = join_ranks(std::move(backends));
  RankGroup& group = *first->ranks();
  constexpr int64_t kMost = int64_t{64} << 20;  // floats
  std::vector<DeviceTensor> tensors(static_cast<size_t>(n_ranks));
  group.run([&](int rank) {
    tensors[size_t(rank)] = group.backend(rank).allocate(DType::F32, {1, kMost});
  });
  for (int64_t n = 2048; n <= kMost; n *= 2) {
    const int times = int(std::clamp<int64_t>((int64_t{1} << 28) / n, 10, 500));
    std::vector<double> samples;
    for (int i = 0; i < 5; ++i) samples.push_back(seconds_of(group, tensors, n, times));
    std::ranges::sort(samples);
    const double us = samples[2] * 1e6, bytes = double(n) * 4;
    std::printf("{\"ranks\":%d,\"bytes\":%.0f,\"us\":%.2f,\"best_us\":%.2f,\"bus_GBps\":%.1f}\n",
                n_ranks, bytes, us, samples[0] * 1e6,
                bytes * 2 * (n_ranks - 1) / n_ranks / us * 1e-3);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace minfer

int main(int argc, char** argv) {
  try {
    minfer::run(argc > 1 ? std::atoi(argv[1]) : 2);
  } catch (const minfer::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return int(error.kind());
  }
}
