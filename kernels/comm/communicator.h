#pragma once

#include "kernels/base/tensor.h"

namespace minfer {

// Algorithms of an all-reduce. What each does: kernels/comm/all_reduce_cost.h.
enum class AllReduceKind { Ring, Tree, OneShot, TwoShot, TwoLevel };

// One rank's connection to the others that share a model with it (tensor parallelism). All ranks
// call the same operations in the same order, with the same shapes except where said otherwise.
// Every operation throws PeerStopped if another rank has stopped, and Error (Peer) if one does not
// answer in time.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int n_ranks() const = 0;
  // Processes among the ranks that share this one's host memory.
  virtual int n_processes_of_host() const { return 1; }

  // x [n_rows, n] becomes the sum over all ranks, with the same bits on every rank and in every
  // run. On the CPU the order of the additions depends on the column and on n_ranks alone, so a
  // row's bits do not depend on the other rows.
  //   x  in the memory of the rank's backend: F32 on cards; F32, F16 or BF16 on the CPU, where the
  //      sums of each step are rounded to it
  virtual void all_reduce(Tensor x) = 0;
  // The same by one algorithm; false if these ranks do not have it, for this x at least.
  virtual bool all_reduce_by(AllReduceKind kind, Tensor x) = 0;

  // Each rank has some columns of a matrix: `part` [n_rows, n_of_rank] are those from column
  // `begin` on. Writes the parts of all ranks to `out` [n_rows, n], which no rank's part overlaps.
  virtual void all_gather(Tensor out, Tensor part, int64_t begin) = 0;

  // Throws Error (Peer) if an operation that runs behind the caller's back, on a card, has waited
  // for another rank in vain. What it was to compute is of no use then.
  virtual void check() const {}
};

// How the ranks of one process are connected.
class RankLinks {
 public:
  virtual ~RankLinks() = default;

  virtual int n_ranks() const = 0;
  virtual Communicator& communicator(int rank) = 0;
  // Called once on the thread that runs a rank, before anything else of that rank.
  virtual void bind_thread(int /*rank*/) {}
  // Makes all waits throw PeerStopped, from now until reset().
  virtual void stop() = 0;
  // Forgets operations that were cut short. No rank may be in one.
  virtual void reset() = 0;
};

// Thrown out of a Communicator after another rank has failed, whose own error says why.
struct PeerStopped {};

}  // namespace minfer
