#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

#include "kernels/base/cancelled.h"

namespace minfer {

// Threads that share the pieces of one loop at a time; the caller is thread 0. Each thread has a
// range of neighbouring pieces, so that what it prefetches is its own, and takes from the others'
// ranges when its own is done: a thread that the system has descheduled keeps at most one piece
// from being done. A thread that waits spins for some ten microseconds and then sleeps.
class ThreadPool {
 public:
  explicit ThreadPool(int n_threads);  // fewer where the system gives no more
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int n_threads() const { return n_threads_; }

  // While the flag is set, pieces are passed over and loops throw Cancelled. May be null.
  void cancel_by(const std::atomic<bool>* flag) { cancel_flag_ = flag; }
  bool is_cancelled() const {
    return cancel_flag_ != nullptr && cancel_flag_->load(std::memory_order_relaxed);
  }

  // f(piece, thread) for piece = 0 ... n_pieces - 1; returns when all are done. f must not throw,
  // which ends the process where there are several threads, and not call the pool. One caller at a
  // time.
  template <typename F>
  void parallel_for(int64_t n_pieces, F&& f) {
    share_pieces(n_pieces, f);
    if (is_cancelled()) throw Cancelled();
  }

 private:
  template <typename F>
  void share_pieces(int64_t n_pieces, F& f) {
    if (n_pieces <= 1 || workers_.empty()) {
      for (int64_t piece = 0; piece < n_pieces && !is_cancelled(); ++piece) f(piece, 0);
      return;
    }
    using Function = std::remove_reference_t<F>;
    run([](void* context, int64_t piece,
           int thread) noexcept { (*static_cast<Function*>(context))(piece, thread); },
        const_cast<void*>(static_cast<const void*>(&f)), n_pieces);
  }

  using Call = void (*)(void* context, int64_t piece, int thread);

  // How one thread waits.
  class Waiter {
   public:
    // Until `word` is no longer `old`.
    void wait_while_equal(const std::atomic<uint32_t>& word, uint32_t old);

   private:
    int cautious_ = 0;  // waits that spin shortly
  };

  void run(Call call, void* context, int64_t n_pieces);
  void worker(int thread);
  void take_pieces(uint32_t generation, int thread);

  // Generation of the loop in the upper half, pieces of the range not yet taken in the lower: one
  // word, so that a thread that wakes late cannot take a piece of the next loop for one of the
  // last.
  struct alignas(64) Range {
    std::atomic<uint64_t> ticket{0};
  };
  // One past the last piece of a thread's range.
  int64_t range_end(int thread, int64_t n_pieces) const {
    return (thread + 1) * n_pieces / n_threads();
  }

  int n_threads_;
  std::vector<Range> ranges_;                       // by thread
  alignas(64) std::atomic<int64_t> unfinished_{0};  // pieces
  std::atomic<uint32_t> all_done_{0};               // generation of the last finished loop
  // Generation of the loop under way; workers sleep on it.
  alignas(64) std::atomic<uint32_t> generation_{0};
  std::atomic<bool> stop_{false};
  // The loop. A late worker may read these while the next one is written; it then takes no piece.
  std::atomic<Call> call_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<int64_t> n_pieces_{0};
  const std::atomic<bool>* cancel_flag_ = nullptr;  // set between loops alone
  Waiter caller_;
  std::vector<std::thread> workers_;
};

}  // namespace minfer
