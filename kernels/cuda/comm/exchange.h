#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/base/tensor.h"

// Kernels that cards of one host run side by side, one on each, to exchange tensors over peer
// memory. Every wait for another card ends after a deadline; it then writes the rank that it
// waited for, plus 1, to `failed`, in host memory. What counts the operations is in the memory of
// the cards, so that a captured graph of them can be replayed.
namespace minfer::cuda {

constexpr int kMostRanks = 8;

// The words of 16 bytes that the one-shot kernels have in a mailbox for each rank and parity. A
// word carries 8 bytes of the payload. Each region of words counts its operations by itself.
constexpr int kOneShotWords = 64 << 10;
constexpr int kRegionWords = 256;
constexpr int64_t kMostOneShotBytes = int64_t{8} * kOneShotWords;

// Thread blocks of the ring and of the two-shot kernel, at most.
constexpr int kMostChannels = 128;
constexpr int kSlotBytes = 60 << 10;  // two rounds of a block of the ring
// A rank of the ring may be a step of all its 2 n - 2 sends ahead of the next one, and two sends.
constexpr int ring_slots(int n_ranks) { return 2 * n_ranks; }

// One channel of the ring on one card. The rank before writes `arrived` when a slot of the inbox is
// full, the rank after writes `freed` when it has read one of its own.
struct RingChannel {
  uint64_t arrived, freed;
  uint64_t sent, received;  // slots, by this rank alone
  char padding[96];
};

// One block of the two-shot kernel on one card.
struct TwoShotBlock {
  uint64_t of_rank[kMostRanks];  // what that rank's block has done, in steps since the start
  uint64_t steps;                // of this rank's launches, by it alone
  char padding[56];
};

// The memory of one card that the others write to.
struct Mailbox {
  uint4* words;           // [2 parities][n_ranks][kOneShotWords]
  uint32_t* epochs;       // [kOneShotWords / kRegionWords]: operations so far, by this rank alone
  char* inbox;            // [kMostChannels][ring_slots][kSlotBytes]
  RingChannel* channels;  // [kMostChannels]
  TwoShotBlock* blocks;   // [kMostChannels]
  uint64_t* barriers;     // [n_ranks]: barriers that each rank has come to
};

// What a rank's kernels know of all ranks.
struct Ranks {
  Mailbox mailbox[kMostRanks];
  int rank, n_ranks;
  bool shares_card;  // then no kernel lets its successor begin: its blocks could take the place of
                     // those of another rank, for which the kernel waits
  int* failed;       // host memory
};

// One tensor of each rank.
struct OfRanks {
  void* of_rank[kMostRanks];
};

// Sums over all ranks of x, F32, F16 or BF16, of any shape, the same on all ranks. Sums are f32. If
// `residual` is null, x becomes the sum. Else the sum is added to `residual`, F32 of as many
// elements, and the content of x is unspecified afterwards. All ranks get the same bits.

// Each rank sends x to all others: at most kMostOneShotBytes.
void one_shot_all_reduce(cudaStream_t stream, const Ranks& ranks, Tensor x, Tensor residual);
// Whether the two below take them: whole words of 16 bytes.
bool are_whole_words(const Tensor& x, const Tensor& residual);
// A rank reads its slice of x from all others and writes the sum to all. xs: x of each rank.
void two_shot_all_reduce(cudaStream_t stream, const Ranks& ranks, const OfRanks& xs, Tensor x,
                         Tensor residual, int n_channels);
// A ring (kernels/comm/ring.h); partial sums are rounded to the type of x at each step.
void ring_all_reduce(cudaStream_t stream, const Ranks& ranks, Tensor x, Tensor residual,
                     int n_channels);

// One-shot, and the RMSNorm of the new residual stream: residual += the sum of part over all ranks;
// normed = residual * weight / sqrt(mean(residual^2) + eps), for each row. residual [n_rows, dim]
// F32; part, normed [n_rows, dim] and weight [dim] F16 or BF16.
bool fits_one_shot_norm(const Tensor& part, const Tensor& residual);
void one_shot_add_norm(cudaStream_t stream, const Ranks& ranks, Tensor residual, Tensor part,
                       Tensor normed, Tensor weight, float eps);

// Returns on the card when every rank's stream has come to it, with all writes to peer memory done.
void cards_barrier(cudaStream_t stream, const Ranks& ranks);
// Writes part [n_rows, width] to columns [begin, begin + width) of `outs` [n_rows, n] of every
// rank, all F32.
void send_columns(cudaStream_t stream, const Ranks& ranks, const OfRanks& outs, const float* part,
                  int n_rows, int width, int begin, int n);
// Fills n words at `to` with a pattern of `seed`; counts in *n_wrong the words that differ from it.
void write_pattern(cudaStream_t stream, uint4* to, int n, uint32_t seed);
void count_wrong(cudaStream_t stream, const uint4* from, int n, uint32_t seed, int* n_wrong);

}  // namespace minfer::cuda
