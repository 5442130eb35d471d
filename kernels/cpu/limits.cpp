#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>

#include "kernels/base/thread_pool.h"
#include "kernels/base/usable_cores.h"
#include "kernels/bench.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/memory.h"

namespace minfer {
namespace {

constexpr int64_t kMemoryBytes = int64_t{1} << 30;  // of all threads together
constexpr int64_t kPieces = 64;
constexpr int64_t kPieceBytes = kMemoryBytes / kPieces;
constexpr int kPasses = 5;
constexpr int64_t kFmaRounds = 1'000'000;  // in one piece: some milliseconds
constexpr int64_t kFmaPiecesPerThread = 16;
constexpr int kBarriers = 2000;

template <typename F>
double best_seconds(F&& pass) {
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kPasses; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    pass();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    best = std::min(best, taken.count());
  }
  return best;
}

// Results that are never read, kept so that the work is not optimized away.
struct alignas(64) Sink {
  std::atomic<uint32_t> words{0};
  std::atomic<float> flops{0};
};

class LimitProbe {
 public:
  LimitProbe(int n_threads, const std::string& isa, const std::atomic<bool>* cancel_flag)
      : kernels_(cpu::choose_kernels(isa)), pool_(n_threads > 0 ? n_threads : usable_cores()) {
    pool_.cancel_by(cancel_flag);
  }

  int n_threads() const { return pool_.n_threads(); }

  double read_bytes_per_second() {
    touch_memory();
    return double(kMemoryBytes) / best_seconds([&] {
             pool_.parallel_for(kPieces, [&](int64_t piece, int) {
               const auto* words =
                   reinterpret_cast<const uint32_t*>(memory() + piece * kPieceBytes);
               sink_.words = kernels_.sum_words(words, kPieceBytes / int64_t{sizeof(uint32_t)});
             });
           });
  }

  double copy_bytes_per_second() {
    touch_memory();
    return double(kMemoryBytes) / best_seconds([&] {
             pool_.parallel_for(kPieces / 2, [&](int64_t piece, int) {
               char* const from = memory() + 2 * piece * kPieceBytes;
               std::memcpy(from + kPieceBytes, from, size_t(kPieceBytes));
             });
           });
  }

  double fma_flops_per_second() {
    const int64_t n_pieces = kFmaPiecesPerThread * n_threads();
    double flops_per_piece = 0;
    const double seconds = best_seconds([&] {
      pool_.parallel_for(n_pieces, [&](int64_t piece, int) {
        float result = 0;
        const double flops = kernels_.fma_rounds(&result, kFmaRounds);
        sink_.flops = result;
        if (piece == 0) flops_per_piece = flops;
      });
    });
    return double(n_pieces) * flops_per_piece / seconds;
  }

  double barrier_seconds() {
    return best_seconds([&] {
             for (int i = 0; i < kBarriers; ++i) {
               pool_.parallel_for(n_threads(), [](int64_t, int) {});
             }
           }) /
           kBarriers;
  }

 private:
  char* memory() const { return static_cast<char*>(memory_.view().data); }
  void touch_memory() {
    if (memory_) return;
    memory_ = cpu::allocate_tensor(DType::F32, {kMemoryBytes / int64_t{sizeof(float)}});
    pool_.parallel_for(kPieces, [&](int64_t piece, int) {
      std::memset(memory() + piece * kPieceBytes, int(piece) + 1, size_t(kPieceBytes));
    });
  }

  const cpu::CpuKernels& kernels_;
  ThreadPool pool_;
  DeviceTensor memory_;
  Sink sink_;
};

}  // namespace

CpuLimits measure_cpu_limits(int n_threads, const std::string& isa,
                             const std::atomic<bool>* cancel_flag) {
  LimitProbe probe(n_threads, isa, cancel_flag);
  return {.n_threads = probe.n_threads(),
          .read_bytes_per_second = probe.read_bytes_per_second(),
          .copy_bytes_per_second = probe.copy_bytes_per_second(),
          .fma_flops_per_second = probe.fma_flops_per_second(),
          .barrier_seconds = probe.barrier_seconds()};
}

double measure_cpu_read_bandwidth(int n_threads, const std::string& isa,
                                  const std::atomic<bool>* cancel_flag) {
  return LimitProbe(n_threads, isa, cancel_flag).read_bytes_per_second();
}

}  // namespace minfer
