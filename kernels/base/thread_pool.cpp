#include "kernels/base/thread_pool.h"

#include <chrono>

#include "kernels/base/math.h"

namespace minfer {
namespace {

// How long a waiting thread spins before it sleeps: longer than the gaps between the operations of
// a decode step, because sleeping would add some ten microseconds to each gap.
constexpr std::chrono::microseconds kSpin{60};
// Beside another busy process, spinning may take the core from the very thread that is waited for.
// A wait longer than kDescheduled means that this thread was descheduled: the next kCautiousWaits
// waits spin only for kShortSpin.
constexpr std::chrono::microseconds kShortSpin{10};
constexpr std::chrono::milliseconds kDescheduled{1};
constexpr int kCautiousWaits = 256;

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

void ThreadPool::Waiter::wait_while_equal(const std::atomic<uint32_t>& word, uint32_t old) {
  const auto begin = std::chrono::steady_clock::now();
  const auto end = begin + (cautious_ > 0 ? kShortSpin : kSpin);
  if (cautious_ > 0) --cautious_;
  do {
    for (int i = 0; i < 32; ++i) {
      if (word.load(std::memory_order_acquire) != old) return;
      pause_cpu();
    }
  } while (std::chrono::steady_clock::now() < end);
  word.wait(old, std::memory_order_acquire);
  if (std::chrono::steady_clock::now() - begin > kDescheduled) cautious_ = kCautiousWaits;
}

ThreadPool::ThreadPool(int n_threads) : n_threads_(1), ranges_(size_t(n_threads)) {
  workers_.reserve(size_t(n_threads));
  try {
    for (int thread = 1; thread < n_threads; ++thread) {
      workers_.emplace_back([this, thread] { worker(thread); });
    }
  } catch (const std::exception&) {  // no thread or memory left: use those started
  }
  n_threads_ += int(workers_.size());  // workers read it only during a loop
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(Call call, void* context, int64_t n_pieces) {
  const uint32_t generation = generation_.load(std::memory_order_relaxed) + 1;
  call_.store(call, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  n_pieces_.store(n_pieces, std::memory_order_relaxed);
  unfinished_.store(n_pieces, std::memory_order_relaxed);
  int64_t begin = 0;
  for (int thread = 0; thread < n_threads(); ++thread) {
    const int64_t end = range_end(thread, n_pieces);
    ranges_[size_t(thread)].ticket.store(uint64_t{generation} << 32 | narrow<uint32_t>(end - begin),
                                         std::memory_order_release);
    begin = end;
  }
  generation_.store(generation, std::memory_order_release);
  generation_.notify_all();

  take_pieces(generation, 0);
  while (all_done_.load(std::memory_order_acquire) != generation) {
    caller_.wait_while_equal(all_done_, generation - 1);
  }
}

void ThreadPool::take_pieces(uint32_t generation, int thread) {
  for (int i = 0; i < n_threads(); ++i) {
    const int owner = (thread + i) % n_threads();
    std::atomic<uint64_t>& ticket = ranges_[size_t(owner)].ticket;
    uint64_t seen = ticket.load(std::memory_order_acquire);
    while (uint32_t(seen >> 32) == generation && uint32_t(seen) > 0) {
      const Call call = call_.load(std::memory_order_relaxed);
      void* const context = context_.load(std::memory_order_relaxed);
      const int64_t n_pieces = n_pieces_.load(std::memory_order_relaxed);
      if (!ticket.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel,
                                        std::memory_order_acquire)) {
        continue;
      }
      if (!is_cancelled()) {
        call(context, range_end(owner, n_pieces) - int64_t{uint32_t(seen)}, thread);
      }
      if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        all_done_.store(generation, std::memory_order_release);
        all_done_.notify_one();
      }
      seen = ticket.load(std::memory_order_acquire);
    }
  }
}

void ThreadPool::worker(int thread) {
  uint32_t seen = 0;
  Waiter waiter;
  while (true) {
    waiter.wait_while_equal(generation_, seen);
    seen = generation_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) return;
    take_pieces(seen, thread);
  }
}

}  // namespace minfer
