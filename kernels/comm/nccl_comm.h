#pragma once

#include <memory>
#include <span>
#include <string>

#include "kernels/backend.h"
#include "kernels/comm/communicator.h"

// Ranks that are cards and sum by NCCL: across processes and hosts, or in one process beside
// make_card_links, to compare the two. In a build without it (MINFER_NCCL) all of this throws
// Usage.
namespace minfer {

// Whether this build has NCCL.
bool has_nccl();

// Names a new group of ranks. Rank 0 makes it, and all ranks are given it.
std::string make_nccl_id();

// Joins the card of `backend` to the other ranks of the group, which do the same: returns when all
// have. Its operations run on the backend's stream; all_reduce takes F32, F16 and BF16. Throws Gpu
// for an error of NCCL, and Peer if the others do not come within a minute. The backend outlives
// it.
std::unique_ptr<Communicator> make_nccl_communicator(Backend& backend, const std::string& id,
                                                     int rank, int n_ranks);

// The ranks of one process, each with a backend of a card. Each rank is called on a thread of its
// own, as RankGroup does.
std::unique_ptr<RankLinks> make_nccl_links(std::span<Backend* const> backends);

}  // namespace minfer
