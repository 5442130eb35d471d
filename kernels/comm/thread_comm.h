#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/comm/communicator.h"

namespace minfer {

// Ranks that are threads of this process and exchange tensors through host memory. A rank reads
// what it needs from the memory of the rank before it in the ring; a counter per rank says how far
// it has come.
class ThreadRanks final : public RankLinks {
 public:
  // deadline: the longest that a rank waits for another one.
  explicit ThreadRanks(int n_ranks, std::chrono::milliseconds deadline = std::chrono::seconds(120));
  ~ThreadRanks() override;

  int n_ranks() const override { return static_cast<int>(ranks_.size()); }
  Communicator& communicator(int rank) override;
  void stop() override;
  void reset() override;

  // Returns when every rank has called it as often.
  void barrier(int rank);

 private:
  class Rank;

  void wait_for(int rank, uint64_t ticks);  // until the rank has counted that many ticks

  std::vector<std::unique_ptr<Rank>> ranks_;
  const std::chrono::milliseconds deadline_;
  std::atomic<bool> stopped_{false};
  std::mutex mutex_;  // of sleeping waits
  std::condition_variable ticked_;
};

}  // namespace minfer
