#include "kernels/comm/thread_comm.h"

#include <algorithm>
#include <thread>

#include "kernels/comm/columns.h"
#include "kernels/comm/ring.h"

namespace minfer {
class ThreadRanks::Rank final : public Communicator {
 public:
  Rank(ThreadRanks& group, int rank) : group_(group), rank_(rank) {}

  int rank() const override { return rank_; }
  int n_ranks() const override { return group_.n_ranks(); }

  // Waiting for the rank before is enough for the rank after, too: before this rank overwrites a
  // chunk in the all-gather, its news has gone round the whole ring, and so has passed the rank
  // after it, which had read the chunk's partial sum by then.
  void all_reduce(Tensor x) override {
    MINFER_CHECK(x.shape.rank == 2 && is_float(x.dtype), "all_reduce of ", x.dtype, ' ', x.shape);
    const int n = n_ranks(), before = (rank_ + n - 1) % n;
    if (n == 1) return;
    shared_ = x;
    tick();
    const uint64_t first = ticks_;
    for (int i = 0; i < ring_steps(n); ++i) {
      group_.wait_for(before, first + static_cast<uint64_t>(i));
      const RingStep step = ring_step(n, rank_, i);
      const Tensor from = group_.ranks_[static_cast<size_t>(before)]->shared_;
      MINFER_CHECK(from.shape == x.shape && from.dtype == x.dtype, "all_reduce of ", x.shape,
                   " and ", from.shape);
      const Columns to = chunk_of(x, n, step.receive), chunk = chunk_of(from, n, step.receive);
      step.reduces ? add(to, chunk) : copy(to, chunk);
      tick();
    }
    // Until the rank after has read the last chunk.
    group_.wait_for((rank_ + 1) % n, ticks_);
  }

  bool all_reduce_by(AllReduceKind kind, Tensor x, Tensor residual) override {
    if (kind != AllReduceKind::Ring || residual) return false;
    all_reduce(x);
    return true;
  }

  void all_gather(Tensor out, Tensor part, int64_t begin) override {
    shared_ = part;
    begin_ = begin;
    tick();
    const uint64_t published = ticks_;
    for (int i = 0; i < n_ranks(); ++i) {
      const int other = (rank_ + i) % n_ranks();
      group_.wait_for(other, published);
      const Rank& from = *group_.ranks_[static_cast<size_t>(other)];
      const int64_t width = from.shared_.shape[1];
      copy(columns_of(out, from.begin_, width), columns_of(from.shared_, 0, width));
    }
    barrier();  // until all have read this rank's part
  }

  void barrier() {
    tick();
    for (int other = 0; other < n_ranks(); ++other) group_.wait_for(other, ticks_);
  }

  uint64_t done() const { return done_.load(std::memory_order_acquire); }
  void reset() {
    ticks_ = 0;
    done_.store(0);
  }

 private:
  void tick() {
    done_.store(++ticks_, std::memory_order_release);
    { const std::lock_guard lock(group_.mutex_); }  // no wait may miss it
    group_.ticked_.notify_all();
  }

  ThreadRanks& group_;
  const int rank_;
  Tensor shared_;  // what the others read until this rank's next tick
  int64_t begin_ = 0;
  uint64_t ticks_ = 0;
  alignas(64) std::atomic<uint64_t> done_{0};
};

ThreadRanks::ThreadRanks(int n_ranks, std::chrono::milliseconds deadline) : deadline_(deadline) {
  MINFER_CHECK(n_ranks >= 1, n_ranks, " ranks");
  for (int rank = 0; rank < n_ranks; ++rank) ranks_.push_back(std::make_unique<Rank>(*this, rank));
}

ThreadRanks::~ThreadRanks() = default;

Communicator& ThreadRanks::communicator(int rank) { return *ranks_.at(static_cast<size_t>(rank)); }

void ThreadRanks::barrier(int rank) { ranks_.at(static_cast<size_t>(rank))->barrier(); }

void ThreadRanks::stop() {
  stopped_.store(true);
  { const std::lock_guard lock(mutex_); }
  ticked_.notify_all();
}

void ThreadRanks::reset() {
  stopped_.store(false);
  for (const auto& rank : ranks_) rank->reset();
}

void ThreadRanks::wait_for(int rank, uint64_t ticks) {
  const Rank& other = *ranks_[static_cast<size_t>(rank)];
  const auto is_over = [&] { return other.done() >= ticks || stopped_.load(); };
  // Ranks run in step: most waits are short.
  constexpr int kSpins = 200;
  for (int i = 0; i < kSpins && !is_over(); ++i) std::this_thread::yield();
  if (!is_over()) {
    std::unique_lock lock(mutex_);
    // In slices: while the whole process is stopped, no time passes for any rank.
    const auto slice = std::min(deadline_, std::chrono::milliseconds(1000));
    auto waited = std::chrono::milliseconds(0);
    while (!ticked_.wait_for(lock, slice, is_over)) {
      waited += slice;
      MINFER_REQUIRE(Peer, waited < deadline_, "rank ", rank, " has not answered for ",
                     deadline_.count() / 1000, " s");
    }
  }
  // A tick that has come counts, even if the group has stopped: so either all ranks pass a meeting
  // or none.
  if (other.done() < ticks) throw PeerStopped();
}

}  // namespace minfer
