#pragma once

#include <functional>

#include "kernels/base/tensor.h"

namespace minfer {

// Algorithms of an all-reduce. What each does: kernels/comm/all_reduce_cost.h. Library: the one
// that NCCL chooses.
enum class AllReduceKind { Ring, Tree, OneShot, TwoShot, TwoLevel, Library };

// A sum into the residual stream, followed by its RMSNorm, whose parts are made piece by piece:
//   residual += the sum over all ranks of the parts
//   normed = residual * weight / sqrt(mean(residual^2) + eps) for each row
struct MadeSum {
  Tensor residual;  // [n_rows, n] F32, with the same bits on every rank
  Tensor normed;    // [n_rows, n] F16 or BF16
  Tensor weight;    // [n], of the same type
  float eps = 0;
  // Computes the rows from first_row on of this rank's part, to `rows`, of that type.
  std::function<void(Tensor rows, int64_t first_row)> make;
};

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
  // row's bits do not depend on the other rows; on cards it depends on the size, too.
  //   x  F32, F16 or BF16, in the memory of the rank's backend. Sums are f32, rounded to the type
  //      of x where a partial sum travels, and at the end
  virtual void all_reduce(Tensor x) = 0;
  // residual += the sum over all ranks of part, again with the same bits on every rank; the content
  // of part is unspecified afterwards. False if these ranks do not have it.
  //   residual  F32, with the same bits on every rank, of the shape of part
  virtual bool all_reduce_add(Tensor /*residual*/, Tensor /*part*/) { return false; }
  // The same, and normed = residual * weight / sqrt(mean(residual^2) + eps) for each row; false if
  // these ranks do not have it for such rows.
  virtual bool all_reduce_add_norm(Tensor /*residual*/, Tensor /*part*/, Tensor /*normed*/,
                                   Tensor /*weight*/, float /*eps*/) {
    return false;
  }
  // A long sum, part of which travels while the rest is made. False, before it calls `make`, if
  // these ranks do not have it for such rows. Then the caller makes the part at once.
  virtual bool all_reduce_made(const MadeSum& /*sum*/) { return false; }
  // Memory that all_reduce_made takes for [n_rows, n] at most; to reserve it, so that no pass has
  // to.
  virtual int64_t workspace_bytes(int64_t /*n_rows*/, int64_t /*n*/) const { return 0; }
  virtual void reserve(int64_t /*n_rows*/, int64_t /*n*/) {}
  // all_reduce by one algorithm, or all_reduce_add if `residual` is not null; false if these ranks
  // do not have it, for this x at least.
  virtual bool all_reduce_by(AllReduceKind kind, Tensor x, Tensor residual = {}) = 0;
  // How many thread blocks of a card the next all-reduces may take, those of one shot excepted; 0:
  // as many as are of use. All ranks set the same number.
  virtual void set_channels(int /*n*/) {}

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
