#pragma once

#include <cuda_runtime.h>

#include <cstdint>

// Kernels that cards of one host run side by side, one on each, to exchange tensors over peer
// memory. Every wait for another card ends after a deadline; it then writes the rank that it
// waited for, plus 1, to `failed`, in host memory.
namespace minfer::cuda {

constexpr int kMostRanks = 8;
constexpr int kRingChannels = 32, kRingSlots = 4;
constexpr int kRingSlotBytes = 256 << 10;
// Words of 16 bytes that the one-shot all-reduce has in a mailbox for each peer and parity; each
// carries two floats.
constexpr int kOneShotWords = 64 << 10;

// One channel of the ring on one card. The rank before writes `arrived` when a slot of the inbox is
// full, the rank after writes `freed` when it has read one of its own.
struct RingChannel {
  uint64_t arrived, freed;
  uint64_t sent, received;  // slots, by this rank alone
  char padding[96];
};

// The memory of one card that the others write to.
struct Mailbox {
  uint4* words;           // [2 parities][n_ranks][kOneShotWords]
  char* inbox;            // [kRingChannels][kRingSlots][kRingSlotBytes]
  RingChannel* channels;  // [kRingChannels]
  uint32_t* flags;        // [n_ranks] of barriers
};

// What a rank's kernels know of all ranks.
struct Ranks {
  Mailbox mailbox[kMostRanks];
  int rank, n_ranks;
  int* failed;  // host memory
};

// x[i] += the same element of all other ranks, for n <= 2 * kOneShotWords elements F32; summed in
// the order of the ranks. `epoch` counts these operations from 1, on all ranks alike.
void one_shot_all_reduce(cudaStream_t stream, const Ranks& ranks, float* x, int n, uint32_t epoch);
// The same by a ring (kernels/comm/ring.h), for n % 4 == 0; chunks are of 16-byte words.
void ring_all_reduce(cudaStream_t stream, const Ranks& ranks, float* x, int64_t n);
// Returns on the card when every rank's stream has come to it, with all writes to peer memory done.
// `epoch` counts as above, by itself.
void cards_barrier(cudaStream_t stream, const Ranks& ranks, uint32_t epoch);
// Writes part [n_rows, width] to columns [begin, begin + width) of `outs` [n_rows, n] of every
// rank.
void send_columns(cudaStream_t stream, const Ranks& ranks, float* const* outs, const float* part,
                  int n_rows, int width, int begin, int n);
// Fills n words at `to` with a pattern of `seed`; counts in *n_wrong the words that differ from it.
void write_pattern(cudaStream_t stream, uint4* to, int n, uint32_t seed);
void count_wrong(cudaStream_t stream, const uint4* from, int n, uint32_t seed, int* n_wrong);

}  // namespace minfer::cuda
