#pragma once

#include <span>
#include <string_view>

#include "kernels/comm/communicator.h"

// What an all-reduce costs in the alpha-beta model: a message of n bytes over a link takes alpha +
// n / beta seconds, and a rank sends one message at a time. Inside a host, where ranks write to
// each other's memory, the latency of a message passes while the next is sent; between hosts each
// message keeps its sender busy until it has arrived.
namespace minfer {

struct LinkCost {
  double alpha = 0;  // seconds
  double beta = 1;   // bytes per second
  double seconds(double bytes) const { return alpha + bytes / beta; }
};

// n_ranks in hosts of up to ranks_per_host, whose ranks are linked by `inside`; ranks of different
// hosts by `between`.
struct RankTopology {
  int n_ranks = 1;
  int ranks_per_host = 1;
  LinkCost inside, between;

  const LinkCost& link(int from, int to) const {
    return from / ranks_per_host == to / ranks_per_host ? inside : between;
  }
};

std::string_view name_of(AllReduceKind kind);

// Whether the algorithm has a schedule for these ranks: TwoLevel needs more than one host, all
// full.
bool applies(AllReduceKind kind, const RankTopology& ranks);

// Seconds of an all-reduce of `bytes` by the formula of the algorithm:
//   Ring      2 (n - 1) steps of bytes / n, or the slowest link's time for all chunks
//   Tree      reduced to one rank and broadcast from it, ceil(log2 n) steps each of all bytes
//   OneShot   every rank sends all to all others, one message after the other
//   TwoShot   every rank sends a slice to each other rank, which sends back the sum
//   TwoLevel  reduce-scatter inside each host, a ring between the hosts, all-gather inside
double predicted_seconds(AllReduceKind kind, const RankTopology& ranks, double bytes);

// The same by going through the schedule message by message: a rank sends what it has received in
// the step before.
double simulated_seconds(AllReduceKind kind, const RankTopology& ranks, double bytes);

struct AllReduceSample {
  double bytes = 0, seconds = 0;
};
// The link for which the largest relative difference of predicted_seconds from the samples of
// n_ranks ranks is smallest; and that difference.
struct LinkFit {
  LinkCost link;
  double worst = 0;
};
LinkFit fit_link(AllReduceKind kind, int n_ranks, std::span<const AllReduceSample> samples);

}  // namespace minfer
