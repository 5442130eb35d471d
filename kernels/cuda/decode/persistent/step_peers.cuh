#pragma once

#include "kernels/cuda/deadline.cuh"
#include "kernels/cuda/decode/persistent/step_exchange.cuh"
#include "kernels/cuda/decode/persistent/step_params.h"
#include "kernels/cuda/ptx.cuh"

// How the steps of several ranks, which run at the same time, sum and gather. Every rank has some
// columns of wo and down. The block that has a row sends its sum, a flagged word for four rows, to
// the mailboxes of all other ranks, waits for theirs, and adds all in the order of the ranks, so
// that all have the same bits. Each rank has all rows of the residual stream; no rank waits for
// another anywhere else, but at the end.
//
// No word is overwritten early: between two sums of the same matrix a rank needs all sums of the
// other one, which the others have sent after they read their words of the first; and no step ends
// before all ranks have.
namespace minfer::cuda {

// The sum over all ranks of a row; all lanes of a warp call it for rows that follow one another,
// those of a lane group of four for four rows of one word. `index`: 0 wo, 1 down; n_rows: of the
// block, from first_row on.
__device__ inline float sum_over_ranks(const StepPeers& peers, int index, int first_row, int n_rows,
                                       float value, uint32_t epoch) {
  const auto mailbox = [&](int of, int sender) {
    return peers.mailboxes[of] + int64_t{index * peers.n_ranks + sender} * peers.mailbox_words +
           first_row / 4;
  };
  for (int i = 1; i < peers.n_ranks; ++i) {
    const int peer = (peers.rank + i) % peers.n_ranks;
    publish<WordReader::Peer>(mailbox(peer, peers.rank), 0, n_rows, value, epoch);
  }
  const int thread = thread_index();
  float sum = 0;
  Deadline deadline{peers.failed};
  for (int rank = 0; rank < peers.n_ranks; ++rank) {
    float part = through_word(value);
    if (rank != peers.rank) {
      const uint4* const from = mailbox(peers.rank, rank) + thread / 4;
      StepWord word{};
      bool is_done = thread >= n_rows;
      do {
        if (!is_done) word = load_word_of_peer(from);
        is_done = is_done || word.is_of(epoch) || deadline.is_over(rank);
      } while (!__all_sync(~0u, is_done));
      const float first = thread % 2 == 0 ? word.at(0) : word.at(1);
      const float second = thread % 2 == 0 ? word.at(2) : word.at(3);
      part = thread % 4 < 2 ? first : second;
    }
    sum = rank == 0 ? part : sum + part;
  }
  return sum;
}

// Ends a block's part of the step. When the kernel of a rank ends, all logits are in its memory,
// from all ranks. `n_steps`: those since the counters were cleared, this one included.
__device__ inline void end_with_peers(const StepPeers& peers, uint32_t n_steps) {
  if (peers.n_ranks == 1) return;
  consumers_sync();  // the block has stored its logits
  if (thread_index() != 0) return;
  for (int i = 1; i < peers.n_ranks; ++i) {
    const int peer = (peers.rank + i) % peers.n_ranks;
    ptx::count_arrival_at_peer(peers.arrivals[peer] + peers.rank);
  }
  if (blockIdx.x != 0) return;
  Deadline deadline{peers.failed};
  for (int rank = 0; rank < peers.n_ranks; ++rank) {
    const uint32_t* const arrived = peers.arrivals[peers.rank] + rank;
    while (rank != peers.rank && ptx::load_from_peer(arrived) < n_steps * gridDim.x) {
      if (deadline.is_over(rank)) return;
    }
  }
}

}  // namespace minfer::cuda
