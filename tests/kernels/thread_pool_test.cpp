#include "kernels/base/thread_pool.h"

#include <gtest/gtest.h>

#include <chrono>

namespace minfer {
namespace {

TEST(ThreadPool, RunsEveryPieceOnce) {
  for (int n_threads : {1, 2, 3, 8}) {
    ThreadPool pool(n_threads);
    EXPECT_EQ(pool.n_threads(), n_threads);
    for (int64_t n_pieces : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> taken(static_cast<size_t>(n_pieces));
      pool.parallel_for(n_pieces, [&](int64_t piece, int thread) {
        EXPECT_TRUE(thread >= 0 && thread < n_threads);
        ++taken[size_t(piece)];
      });
      for (const auto& count : taken) ASSERT_EQ(count, 1);
    }
  }
}

// Thousands of short loops back to back: a thread that is late for one must not touch the next. Any
// thread may write to the plain array, so that ThreadSanitizer sees a missing order.
TEST(ThreadPool, LoopsFollowEachOther) {
  ThreadPool pool(4);
  std::vector<int64_t> sums(5);
  for (int64_t loop = 0; loop < 20000; ++loop) {
    const int64_t n_pieces = 1 + loop % 5;
    pool.parallel_for(n_pieces, [&](int64_t piece, int) { sums[size_t(piece)] += loop; });
  }
  for (size_t piece = 0; piece < sums.size(); ++piece) {
    int64_t want = 0;
    for (int64_t loop = 0; loop < 20000; ++loop) want += int64_t(piece) <= loop % 5 ? loop : 0;
    EXPECT_EQ(sums[piece], want);
  }
}

TEST(ThreadPool, WakesSleepingThreads) {
  ThreadPool pool(3);
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // longer than threads spin
    std::atomic<int> n = 0;
    pool.parallel_for(100, [&](int64_t, int) { ++n; });
    ASSERT_EQ(n, 100);
  }
}

// The first piece ends only after all others, so the other thread has to run them.
TEST(ThreadPool, MovesPastAStalledThread) {
  constexpr int kPieces = 64;
  constexpr std::chrono::seconds kPatience{60};
  ThreadPool pool(2);
  std::atomic<bool> stalled = false;
  std::atomic<int> n_done = 0;
  std::atomic<int> by_thread[2] = {0, 0};
  pool.parallel_for(kPieces, [&](int64_t, int thread) {
    ++by_thread[thread];
    if (!stalled.exchange(true)) {
      const auto end = std::chrono::steady_clock::now() + kPatience;
      while (n_done < kPieces - 1 && std::chrono::steady_clock::now() < end) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    ++n_done;
  });
  EXPECT_EQ(by_thread[0] + by_thread[1], kPieces);
  EXPECT_EQ(std::min(by_thread[0], by_thread[1]), 1);
}

// The flag is set inside a piece: pieces in progress are finished, the rest are skipped.
TEST(ThreadPool, ACancelledLoopEndsAtThePiece) {
  for (int n_threads : {1, 2, 3}) {
    ThreadPool pool(n_threads);
    std::atomic<bool> cancel = false;
    pool.cancel_by(&cancel);
    std::atomic<int> n = 0;
    const auto loop = [&] { pool.parallel_for(1000, [&](int64_t, int) { cancel = ++n >= 10; }); };
    EXPECT_THROW(loop(), Cancelled);
    EXPECT_LT(n, 10 + n_threads);
    EXPECT_THROW(loop(), Cancelled);  // as long as the flag is set
    EXPECT_LT(n, 10 + n_threads);
    cancel = false;
    n = -1000000;
    loop();
    EXPECT_EQ(n, -1000000 + 1000);
  }
}

}  // namespace
}  // namespace minfer
