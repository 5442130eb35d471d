// All-reduces between the cards of this machine, one JSON line each: the median time of one of many
// in a captured graph, launches included, and the bus bandwidth, 2 (n - 1) / n of the bytes over
// the time.
//   cuda_ranks_bench [n_ranks] [part...]
//   kinds      every algorithm at every size, F16, in place
//   residual   the same, added to the F32 residual stream
//   types      the algorithm that all_reduce chooses, for each type of the payload
//   channels   ring and two-shot by the number of their thread blocks
//   norm       rows of 4096 F16 added to the residual stream and normed: fused, and by two kernels
//   host       not in a graph: the host launches each, and its threads meet before
// Without a part, all of them.
#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "kernels/comm/all_reduce_cost.h"
#include "kernels/comm/communicator.h"
#include "kernels/comm/rank_group.h"
#include "kernels/cuda/bench/timing.h"
#include "kernels/cuda/cuda_backend.h"

namespace minfer {
namespace {

constexpr int64_t kMostBytes = int64_t{256} << 20;
constexpr AllReduceKind kKinds[] = {AllReduceKind::OneShot, AllReduceKind::TwoShot,
                                    AllReduceKind::Ring};

class Bench {
 public:
  explicit Bench(int n_ranks) : n_ranks_(n_ranks), meeting_(n_ranks) {
    std::vector<std::unique_ptr<Backend>> backends;
    for (int rank = 0; rank < n_ranks; ++rank) {
      backends.push_back(make_cuda_backend({.device = rank}));
    }
    first_ = join_ranks(std::move(backends));
    memory_.resize(size_t(n_ranks));
    group().run([&](int rank) {
      Memory& m = memory_[size_t(rank)];
      Backend& own = group().backend(rank);
      m.x = zeros(own, kMostBytes);
      m.residual = zeros(own, 2 * kMostBytes);
      m.normed = zeros(own, int64_t{4} << 20);
      own.synchronize();
    });
  }

  void kinds() {
    for (const AllReduceKind kind : kKinds) {
      for (int64_t n_bytes = 1024; n_bytes <= kMostBytes; n_bytes *= 2) {
        if (kind == AllReduceKind::OneShot && n_bytes > 512 << 10) break;
        all_reduce(name_of(kind), DType::F16, n_bytes,
                   [&](Communicator& own, Tensor x, Tensor) { own.all_reduce_by(kind, x); });
      }
    }
  }
  void residual() {
    for (const AllReduceKind kind : kKinds) {
      for (int64_t n_bytes = 8192; n_bytes <= int64_t{64} << 20; n_bytes *= 2) {
        if (kind == AllReduceKind::OneShot && n_bytes > 512 << 10) break;
        all_reduce(cat(name_of(kind), " + residual"), DType::F16, n_bytes,
                   [&](Communicator& own, Tensor x, Tensor residual) {
                     own.all_reduce_by(kind, x, residual);
                   });
      }
    }
  }
  void types() {
    for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
      for (const int64_t n_bytes : {8 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20}) {
        all_reduce("chosen", dtype, n_bytes,
                   [](Communicator& own, Tensor x, Tensor) { own.all_reduce(x); });
      }
    }
  }
  void channels() {
    for (const AllReduceKind kind : {AllReduceKind::TwoShot, AllReduceKind::Ring}) {
      for (const int n : {16, 32, 64, 96, 128}) {
        for (const int64_t n_bytes : {1 << 20, 16 << 20, 256 << 20}) {
          for (const bool adds : {false, true}) {
            all_reduce(cat(name_of(kind), ", ", n, " channels", adds ? ", residual" : ""),
                       DType::F16, n_bytes, [&](Communicator& own, Tensor x, Tensor residual) {
                         own.set_channels(n);
                         own.all_reduce_by(kind, x, adds ? residual : Tensor());
                         own.set_channels(0);
                       });
          }
        }
      }
    }
  }
  void norm() {
    for (const int64_t n_rows : {1, 2, 4, 8, 16, 32}) {
      const Shape shape{n_rows, 4096};
      const int64_t n_bytes = bytes_of(DType::F16, shape);
      const auto norm_args = [&](int rank, Tensor residual) {
        const Memory& m = memory_[size_t(rank)];
        return NormArgs{
            .out = {m.normed.view().data, DType::F16, shape},
            .x = residual,
            .weight = {m.normed.view().rows(int64_t{2} << 20, 8192).data, DType::F16, {4096}},
            .bias = {},
            .eps = 1e-5f};
      };
      const auto shaped = [&](Tensor t) { return Tensor{t.data, t.dtype, shape}; };
      all_reduce("one-shot + residual + norm, fused", DType::F16, n_bytes,
                 [&](Communicator& own, Tensor x, Tensor residual) {
                   const NormArgs a = norm_args(own.rank(), shaped(residual));
                   MINFER_CHECK(own.all_reduce_add_norm(a.x, shaped(x), a.out, a.weight, a.eps),
                                "no fused norm of ", shape);
                 });
      all_reduce("one-shot + residual, then norm", DType::F16, n_bytes,
                 [&](Communicator& own, Tensor x, Tensor residual) {
                   own.all_reduce_add(shaped(residual), shaped(x));
                   group().backend(own.rank()).norm(norm_args(own.rank(), shaped(residual)));
                 });
    }
  }
  void host() {
    constexpr int kTimes = 500;
    for (const int64_t n_bytes : {8 << 10, 64 << 10, 512 << 10}) {
      std::vector<double> samples;
      for (int i = 0; i < 5; ++i) {
        double us = 0;
        group().run([&](int rank) {
          Backend& own = group().backend(rank);
          const Tensor x = view(rank, DType::F16, n_bytes);
          const auto start = std::chrono::steady_clock::now();
          for (int k = 0; k < kTimes; ++k) own.communicator()->all_reduce(x);
          own.synchronize();
          const auto time = std::chrono::steady_clock::now() - start;
          if (rank == 0) us = std::chrono::duration<double, std::micro>(time).count() / kTimes;
        });
        samples.push_back(us);
      }
      group().check();
      print("chosen, launched by the host", DType::F16, n_bytes, cuda::median(samples));
    }
  }

 private:
  struct Memory {
    DeviceTensor x, residual, normed;
  };

  RankGroup& group() { return *first_->ranks(); }

  static DeviceTensor zeros(Backend& backend, int64_t n_bytes) {
    DeviceTensor tensor = backend.allocate(DType::U8, {n_bytes});
    MINFER_CUDA_CHECK(cudaMemset(tensor.view().data, 0, size_t(n_bytes)));
    MINFER_CUDA_CHECK(cudaDeviceSynchronize());
    return tensor;
  }
  Tensor view(int rank, DType dtype, int64_t n_bytes) {
    return {memory_[size_t(rank)].x.view().data, dtype, {1, n_bytes / bytes_of(dtype, 1)}};
  }

  // work(communicator, x, residual) on every rank, so many times in a graph.
  template <typename F>
  void all_reduce(std::string_view what, DType dtype, int64_t n_bytes, F&& work) {
    constexpr int kUntimed = 2, kTimed = 7;
    const int times = int(std::clamp<int64_t>((int64_t{1} << 28) / n_bytes, 4, 200));
    std::vector<double> samples;
    group().run([&](int rank) {
      Backend& own = group().backend(rank);
      const Tensor x = view(rank, dtype, n_bytes);
      const Tensor residual{memory_[size_t(rank)].residual.view().data, DType::F32, x.shape};
      const cudaStream_t stream = dynamic_cast<cuda::CudaBackend&>(own).stream();
      const cuda::GraphExec graph = cuda::capture_graph(stream, [&] {
        for (int i = 0; i < times; ++i) work(*own.communicator(), x, residual);
      });
      cuda::StreamTimer timer(stream);
      for (int i = 0; i < kUntimed + kTimed; ++i) {
        meeting_.arrive_and_wait();
        const double us = timer.us(graph) / times;
        if (rank == 0 && i >= kUntimed) samples.push_back(us);
      }
    });
    group().check();
    print(what, dtype, n_bytes, cuda::median(samples));
  }
  void print(std::string_view what, DType dtype, int64_t n_bytes, double us) {
    std::printf(
        "{\"what\":\"%s\",\"ranks\":%d,\"type\":\"%s\",\"bytes\":%lld,\"us\":%.2f,"
        "\"bus_GBps\":%.1f}\n",
        std::string(what).c_str(), n_ranks_, cat(dtype).c_str(), static_cast<long long>(n_bytes),
        us, double(n_bytes) * 2 * (n_ranks_ - 1) / n_ranks_ / us * 1e-3);
    std::fflush(stdout);
  }

  int n_ranks_;
  std::barrier<> meeting_;
  std::unique_ptr<Backend> first_;
  std::vector<Memory> memory_;
};

void run(int n_ranks, const std::set<std::string>& parts) {
  Bench bench(n_ranks);
  const auto part = [&](const char* name, void (Bench::*run)()) {
    if (parts.empty() || parts.contains(name)) (bench.*run)();
  };
  part("kinds", &Bench::kinds);
  part("residual", &Bench::residual);
  part("types", &Bench::types);
  part("channels", &Bench::channels);
  part("norm", &Bench::norm);
  part("host", &Bench::host);
}

}  // namespace
}  // namespace minfer

int main(int argc, char** argv) {
  try {
    minfer::run(argc > 1 ? std::atoi(argv[1]) : 2,
                std::set<std::string>(argv + std::min(argc, 2), argv + argc));
  } catch (const minfer::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return int(error.kind());
  }
}
