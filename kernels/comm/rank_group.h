#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/backend.h"
#include "kernels/comm/communicator.h"

namespace minfer {

// The ranks that share a model in this process: a backend for each, and a thread for each but the
// first, whose work the caller does.
class RankGroup {
 public:
  // Connects the backends, one for each rank. The first one's owner keeps the group: join_ranks.
  RankGroup(Backend& first, std::vector<std::unique_ptr<Backend>> others,
            std::unique_ptr<RankLinks> links);
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  int n_ranks() const { return static_cast<int>(others_.size()) + 1; }
  Backend& backend(int rank) {
    return rank == 0 ? first_ : *others_[static_cast<size_t>(rank) - 1];
  }

  // Calls f(rank) for all ranks at once and returns when all are done. If one throws, the others'
  // waits end too. Rethrows what the first rank threw that did not just stop because another had.
  // The group can be used again afterwards.
  void run(const std::function<void(int rank)>& f);
  // Throws what Communicator::check() of any rank throws; the group can be used again then.
  void check();

 private:
  void end_threads();
  void worker(int rank);
  void call(int rank);

  Backend& first_;
  std::vector<std::unique_ptr<Backend>> others_;
  const std::unique_ptr<RankLinks> links_;

  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t generation_ = 0;  // of run()
  int n_running_ = 0;        // workers
  bool is_over_ = false;
  const std::function<void(int)>* function_ = nullptr;
  std::vector<std::exception_ptr> errors_;  // by rank
  std::vector<std::thread> threads_;
};

// Calls f(i, its backend) at once for all ranks of this process, of which `first` is the first
// one's backend, as RankGroup::run does; i counts from 0 in each process.
void on_all_ranks(Backend& first, const std::function<void(int i, Backend& backend)>& f);

// The same for Communicator::check().
void check_all_ranks(Backend& first);

// Connects the ranks, cards over peer memory and CPU ranks over the host's, and returns the backend
// of rank 0, which keeps the others: Backend::ranks(). Throws Gpu if cards cannot be connected, and
// Peer if a link between them does not carry what is sent.
std::unique_ptr<Backend> join_ranks(std::vector<std::unique_ptr<Backend>> backends);

}  // namespace minfer
