#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "kernels/base/error.h"
#include "kernels/comm/communicator.h"

namespace minfer {

struct MpiOptions {
  // Once it is set, waits for other ranks throw Cancelled. It outlives the process object; null:
  // none.
  const std::atomic<bool>* cancelled = nullptr;
  // Called on a thread of its own if another rank has been silent for too long while this one does
  // not wait for it. It calls end_all().
  std::function<void(const Error&)> on_lost_rank;
};

// This process as one rank of those that mpirun has started. There is one such object in a process,
// and one thread calls it, except where said otherwise.
//
// Each rank sends the next one a heartbeat four times a second, also while it computes, reads files
// or waits for input. A rank whose heartbeats stay away for 3 s has been stopped, or its host or
// network has failed: Error (Peer) names it. While this process is itself stopped no time passes.
class MpiProcess {
 public:
  virtual ~MpiProcess() = default;

  // Ranks of this run; the connection to all others. all_reduce has the bits of ThreadRanks.
  virtual Communicator& communicator() = 0;
  virtual int n_ranks_of_host() const = 0;  // that run on the same host, this one included
  virtual int rank_of_host() const = 0;     // among those, from 0
  virtual std::string name() const = 0;     // "rank 2 (host)"
  int rank() { return communicator().rank(); }

  // Returns what rank 0 has passed; what the others pass is ignored. Called by all ranks.
  virtual std::string from_rank_0(std::string bytes) = 0;
  virtual int64_t sum(int64_t n) = 0;  // over all ranks, which all call it
  // Throws Error (Peer), on ranks where `text` is not what it is on rank 0, with both in the
  // message. Called by all ranks.
  void require_same(const std::string& what, const std::string& text) {
    const std::string of_first = from_rank_0(text);
    if (text == of_first) return;
    // From a little before the first byte that differs.
    const auto differs = std::ranges::mismatch(text, of_first).in1 - text.begin();
    const auto begin = static_cast<size_t>(std::max<std::ptrdiff_t>(differs - 100, 0));
    const auto shown = [&](const std::string& x) {
      return cat(begin > 0 ? "..." : "", shortened(x.substr(begin), 300));
    };
    throw Error(ErrorKind::Peer, cat(what, " is ", shown(text), ", on rank 0 ", shown(of_first)));
  }

  // Waits until all ranks call it and leaves MPI. Nothing may be called afterwards.
  virtual void finish() = 0;
  // Ends this process and all other ranks; mpirun's exit status becomes `exit_code`. Any thread may
  // call it.
  [[noreturn]] virtual void end_all(int exit_code) = 0;
};

// Joins the other processes. Throws Usage if mpirun has not started this one, or if this build has
// no MPI. Ends the process with status 7 if the others do not come within 2.5 s, or
// $MINFER_START_SECONDS.
std::unique_ptr<MpiProcess> start_mpi(const MpiOptions& options);

}  // namespace minfer
