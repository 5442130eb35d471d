#include "kernels/comm/thread_comm.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "kernels/base/half.h"
#include "kernels/comm/ring.h"

namespace minfer {
namespace {

// to[i] = from[i] + to[i] for n elements, rounded once.
void add(void* to, const void* from, DType dtype, int64_t n) {
  visit_float(dtype, [&]<typename T>() {
    auto* const sum = static_cast<T*>(to);
    const auto* const x = static_cast<const T*>(from);
    for (int64_t i = 0; i < n; ++i) sum[i] = from_f32<T>(to_f32(x[i]) + to_f32(sum[i]));
  });
}

}  // namespace

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
      receive(x, from, step);
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
      copy_columns(out, from.shared_, from.begin_);
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

  // The chunks are ranges of columns, so that the order in which an element is summed does not
  // depend on how many rows there are.
  void receive(Tensor x, Tensor from, const RingStep& step) const {
    const int64_t n_rows = x.shape[0], n_columns = x.shape[1];
    const int64_t begin = chunk_begin(n_columns, n_ranks(), step.receive);
    const int64_t n = chunk_begin(n_columns, n_ranks(), step.receive + 1) - begin;
    for (int64_t row = 0; row < n_rows; ++row) {
      const int64_t at = bytes_of(x.dtype, row * n_columns + begin);
      std::byte* const to = static_cast<std::byte*>(x.data) + at;
      const std::byte* const read = static_cast<const std::byte*>(from.data) + at;
      if (step.reduces) {
        add(to, read, x.dtype, n);
      } else {
        std::memcpy(to, read, static_cast<size_t>(bytes_of(x.dtype, n)));
      }
    }
  }

  static void copy_columns(Tensor out, Tensor part, int64_t begin) {
    MINFER_CHECK(part.shape[0] == out.shape[0] && part.dtype == out.dtype && begin >= 0 &&
                     begin + part.shape[1] <= out.shape[1],
                 "all_gather of ", part.shape, " from column ", begin, " of ", out.shape);
    const int64_t n_bytes = bytes_of(out.dtype, part.shape[1]);
    for (int64_t row = 0; row < out.shape[0]; ++row) {
      std::memcpy(
          static_cast<std::byte*>(out.data) + bytes_of(out.dtype, row * out.shape[1] + begin),
          static_cast<const std::byte*>(part.data) + row * n_bytes, static_cast<size_t>(n_bytes));
    }
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
