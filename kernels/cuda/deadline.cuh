#pragma once

#include <cstdint>

#include "kernels/cuda/peer_deadline.h"
#include "kernels/cuda/ptx.cuh"

namespace minfer::cuda {

// Ends a wait for another card after the deadline, or at once if an earlier wait of this card has
// failed: many kernels may be queued behind it. `failed`, in host memory: a rank that did not
// answer, plus 1.
struct Deadline {
  int* failed;
  uint32_t tries = 0;
  uint64_t since = 0;

  // Called between two tries. Once it is true, *failed is not 0.
  __device__ bool is_over(int rank) {
    ptx::before_next_try();
    if ((++tries & 0x3ff) != 0) [[likely]]
      return false;
    if (*static_cast<volatile int*>(failed) != 0) return true;
    const uint64_t now = ptx::global_timer();
    if (since == 0) since = now;
    if (now - since < uint64_t{kPeerDeadlineSeconds} * 1'000'000'000) return false;
    *static_cast<volatile int*>(failed) = rank + 1;
    return true;
  }
};

}  // namespace minfer::cuda
