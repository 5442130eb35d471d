#pragma once

#include "kernels/cuda/decode/persistent/step_clocks.cuh"
#include "kernels/cuda/decode/persistent/step_exchange.cuh"
#include "kernels/cuda/decode/persistent/step_ring.cuh"
#include "kernels/cuda/ptx.cuh"

// How a consumer warp takes stages from the ring.
namespace minfer::cuda {

// The sizes that the inner loops of a GEMV read.
struct StepShape {
  int first_stage, n_stages;
  int n_pieces;  // from the first stage on
  int in_dim, unit_shift;
  int stage_scale_bytes;  // behind which the minimums of a stage lie
  int token_stride;       // StepParams
};

// Clock: StepClock or NoClock.
template <typename Clock>
struct StepCursor {
  Clock clock;
  int slot = 0, parity = 0;

  // Calls f(i, memory of the next kN stages) for i = 0 ... n_steps - 1, and releases the stages
  // after each call. Lane i polls and releases the i-th slot from here on, so that one poll covers
  // all steps that are ready.
  template <int kN, int kMostSteps, typename F>
  __device__ void take(const StepRing& ring, int n_steps, F f) {
    const int lane = thread_index() % 32;
    for (int step = 0; step < n_steps;) {
      const int n_wanted = min(min(n_steps - step, kMostSteps) * kN, ring.n_slots / kN * kN);
      int own = slot + min(lane, n_wanted - 1);
      const bool wraps = own >= ring.n_slots;
      if (wraps) own -= ring.n_slots;
      unsigned missing;
      uint32_t began = 0;
      for (bool waits = false;; waits = true) {
        missing = __ballot_sync(
            ~0u, !ptx::mbarrier_is_complete(ring.full + 8 * own, parity ^ int(wraps)));
        if ((missing & ((1u << kN) - 1)) == 0) {
          if (waits) clock.end_wait(began);
          break;
        }
        if (!waits) began = clock.now();
        ptx::before_next_try();
      }
      __syncwarp();  // makes the copies that one lane has seen visible to all lanes
      // Lanes from n_wanted on test the last slot too. They may miss it although its own lane sees
      // it full, since nothing makes lanes test at the same time: hence the minimum.
      const int n_ready = int(min(unsigned(n_wanted), unsigned(__ffs(int(missing)) - 1))) / kN;
      for (int i = 0; i < n_ready; ++i) {
        const uint8_t* memory[kN];
        int slots[kN];
#pragma unroll
        for (int k = 0; k < kN; ++k) {
          slots[k] = slot;
          memory[k] = ring.slots + slot * ring.slot_bytes;
          if constexpr (kIsCheckable) {
            while (!ptx::mbarrier_is_complete(ring.full + 8 * slot, parity)) {
            }
          }
          if (++slot == ring.n_slots) {
            slot = 0;
            parity ^= 1;
          }
        }
        f(step + i, memory);
        __syncwarp();
        if constexpr (kIsCheckable) {
          for (const int read : slots) ptx::mbarrier_arrive_if(true, ring.empty + 8 * read);
        } else {
          ptx::mbarrier_arrive_if(lane / kN == i, ring.empty + 8 * own);
        }
      }
      step += n_ready;
    }
  }
};

}  // namespace minfer::cuda
