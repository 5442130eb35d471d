#include "kernels/base/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace minfer {

void parallel_for(int n_threads, int64_t n_pieces, const std::function<void(int64_t)>& f) {
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  int64_t failed_piece = n_pieces;
  std::exception_ptr failure;
  // Pieces are taken in order, so that every piece before a failed one has been taken too.
  const auto work = [&] {
    for (int64_t piece = next++; piece < n_pieces; piece = next++) {
      try {
        f(piece);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (piece < failed_piece) {
          failed_piece = piece;
          failure = std::current_exception();
        }
        next = n_pieces;
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    try {
      for (int64_t i = 1; i < std::min<int64_t>(n_threads, n_pieces); ++i) {
        threads.emplace_back(work);
      }
    } catch (const std::exception&) {  // the system gives no more: the work is done by fewer
    }
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace minfer
