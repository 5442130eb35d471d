#pragma once

#include <cstdint>

// The schedule of a ring all-reduce, as pure functions. The payload is cut into n_ranks chunks. In
// the first n_ranks - 1 steps (reduce-scatter) each rank receives a chunk from the rank before it
// and adds its own; in as many more (all-gather) it receives the finished chunks. Chunk c is summed
// in the order of the ranks c, c + 1, ..., c + n_ranks - 1 (modulo n_ranks), so every rank ends up
// with the same bits, in every run.
namespace minfer {

struct RingStep {
  int send;      // chunk that goes to the next rank
  int receive;   // chunk that comes from the rank before
  bool reduces;  // the received chunk is added to the rank's own; else it replaces it
};

constexpr int ring_steps(int n_ranks) { return 2 * (n_ranks - 1); }

constexpr RingStep ring_step(int n_ranks, int rank, int step) {
  const auto chunk = [&](int i) { return ((i % n_ranks) + n_ranks) % n_ranks; };
  const bool reduces = step < n_ranks - 1;
  const int at = reduces ? rank - step : rank + 1 - (step - (n_ranks - 1));
  return {chunk(at), chunk(at - 1), reduces};
}

// The first element of chunk c of n; chunk c ends where chunk c + 1 begins.
constexpr int64_t chunk_begin(int64_t n, int n_ranks, int c) { return n * c / n_ranks; }

}  // namespace minfer
