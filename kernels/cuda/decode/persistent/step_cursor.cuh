#pragma once

#include <type_traits>

#include "kernels/cuda/decode/persistent/step_clocks.cuh"
#include "kernels/cuda/decode/persistent/step_exchange.cuh"
#include "kernels/cuda/decode/persistent/step_ring.cuh"
#include "kernels/cuda/ptx.cuh"

// How a consumer warp takes stages from the ring.
namespace minfer::cuda {

// The sizes that the inner loops of a GEMV read.
struct StepShape {
  int first_stage, n_stages;
  int n_pieces;  // of these stages
  int in_dim, unit_shift;
  int stage_scale_bytes;  // behind which the minimums of a stage lie
  int token_stride;       // StepParams
};

// The stage that a lane takes next: lane k has the k-th from here on, and lanes from kWidth - 1 on
// all have the same one. All lanes go on by as many stages. A ring has at least kWidth slots.
// Clock: StepClock or NoClock.
template <typename Clock>
struct StepCursor {
  static constexpr int kWidth = 4;  // stages of a step, at most
  Clock clock;
  int n_slots, slot_bytes;  // of the ring
  int slot = 0, parity = 0;
  int is_full = 0;  // between calls: whether the lane has seen its stage full
  // Of the first thread: stages that take with kAhead takes until the block allows fewer copies.
  int n_far = 0;

  // keeps: whether numbers of the ring are kept in registers.
  __device__ StepCursor(const Clock& clock, const StepRing& ring, bool keeps)
      : clock(clock),
        n_slots(kept_if(keeps, ring.n_slots)),
        slot_bytes(kept_if(keeps, ring.slot_bytes)) {
    slot = min(thread_index() % 32, kWidth - 1);
  }

  // Takes the next n stages, kN at a time, and releases them: calls f(step, their memory) n_whole
  // times, and `last` for what is left, up to kN stages, of which it reads no others.
  //
  // Lane k < kN tests whether the k-th stage of a step is full, and releases it. It tests that of
  // the next step before f is called, since the answer takes a while. Other lanes do not test,
  // since tests of several barriers are done one after another. If no stage is missing, nothing
  // jumps between one step and the next but the loop: instructions behind a jump must be fetched
  // first.
  //
  // kAhead: the places of the next step's stages are asked for before f, and the warp votes on them
  // before it releases its stages; what the last step asked for holds for the next call. It makes
  // loops of INT4 shorter by a tenth, and attention longer; Q4_K is 0.5 % slower with it, Q4_K_M
  // 0.6 % faster, and Q4_1 as fast (docs/lab/decode-2026-11.md).
  template <int kN, bool kAhead = false, typename F, typename Last>
  __device__ void take(const StepRing& ring, int n, int n_whole, F f, Last last) {
    static_assert(kN <= kWidth);
    const int lane = thread_index() % 32;
    int n_left = n, step = 0;
    bool has_stage = lane < min(kN, n);
    const auto test = [&](int is_so) {
      is_full = ptx::mbarrier_is_complete_or(is_so, ring.full + 8 * slot, parity);
    };
    const auto have_all = [&] { return !__any_sync(~0u, is_full == 0 && (!kAhead || has_stage)); };
    const auto ask_again = [&] {
      test(is_full != 0 || !has_stage);
      return have_all();
    };
    int at[kN];  // of the stages of a step
    const auto locate = [&] {
#pragma unroll
      for (int k = 0; k < kN; ++k) at[k] = __shfl_sync(~0u, slot * slot_bytes, k);
    };
    [[maybe_unused]] bool are_there = false;
    if constexpr (kAhead) {
      test(is_full != 0 || !has_stage);
      locate();
      are_there = have_all();
      __syncwarp();  // as in await
    } else {
      test(!has_stage);
    }
    const auto take_step = [&](auto&& g) {
      if constexpr (kAhead) {
        if (!are_there) await(/*waits=*/true, ask_again);
      } else {
        await(/*waits=*/false, ask_again);
        locate();
      }
      const uint8_t* memory[kN];
#pragma unroll
      for (int k = 0; k < kN; ++k) {
        memory[k] = ring.slots + at[k];
        if constexpr (kIsCheckable) {
          const uint32_t full = ring.full + 8 * __shfl_sync(~0u, slot, k);
          const int its_parity = __shfl_sync(~0u, parity, k);
          while (k < n_left && !ptx::mbarrier_is_complete(full, its_parity)) {
          }
        }
      }
      const int taken = slot;
      [[maybe_unused]] const bool had_stage = has_stage;
      go_on(kN);
      has_stage = lane < min(kN, n_left - kN);
      test(kAhead ? lane >= kN : !has_stage);
      if constexpr (kAhead) {
        locate();
        count_down(ring, min(kN, n_left));
      }
      g(step, memory);
      if constexpr (kAhead) are_there = have_all();
      __syncwarp();
      if constexpr (kIsCheckable) {
#pragma unroll
        for (int k = 0; k < kN; ++k) {
          ptx::mbarrier_arrive_if(k < n_left, ring.empty + 8 * __shfl_sync(~0u, taken, k));
        }
      } else {
        ptx::mbarrier_arrive_if(had_stage, ring.empty + 8 * taken);
      }
      n_left -= kN;
      ++step;
    };
    while (step < n_whole) take_step(f);
    if constexpr (!std::is_null_pointer_v<Last>) {
      if (n_left > 0) take_step(last);
      slot += n_left;  // which is negative if the last step has fewer than kN
      if (slot < 0) {
        slot += n_slots;
        parity ^= 1;
      }
    }
    // What was asked last holds for the stages that come next, unless fewer or none were taken.
    if (!kAhead || lane >= kN || n_left < 0 || step == 0) is_full = 0;
  }
  // The same where kN divides n.
  template <int kN, typename F>
  __device__ void take(const StepRing& ring, int n, F f) {
    take<kN>(ring, n, n / kN, f, nullptr);
  }

  // The same one at a time, for whole rows, where a warp passes over most stages or multiplies
  // little of each: lane i tests and releases the i-th from here on, up to kMost at once.
  template <int kMost, typename F>
  __device__ void take_singly(const StepRing& ring, int n, F f) {
    const int lane = thread_index() % 32, own_place = min(lane, kWidth - 1);
    int next = __shfl_sync(~0u, slot, 0);
    parity = __shfl_sync(~0u, parity, 0);
    for (int i = 0; i < n;) {
      const int n_wanted = min(min(n - i, kMost), n_slots);
      int own = next + min(lane, n_wanted - 1);
      const bool wraps = own >= n_slots;
      if (wraps) own -= n_slots;
      unsigned missing = 0;
      await(/*waits=*/false, [&] {
        missing = __ballot_sync(
            ~0u, !ptx::mbarrier_is_complete(ring.full + 8 * own, parity ^ int(wraps)));
        return (missing & 1) == 0;
      });
      // Lanes from n_wanted on test the last slot too. They may miss it although its own lane sees
      // it full, since nothing makes lanes test at the same time: hence the minimum.
      const int n_ready = int(min(unsigned(n_wanted), unsigned(__ffs(int(missing)) - 1)));
      for (int k = 0; k < n_ready; ++k) {
        const int taken = next;
        const uint8_t* const memory[1] = {ring.slots + taken * slot_bytes};
        if constexpr (kIsCheckable) {
          while (!ptx::mbarrier_is_complete(ring.full + 8 * taken, parity)) {
          }
        }
        if (++next == n_slots) {
          next = 0;
          parity ^= 1;
        }
        f(i + k, memory);
        __syncwarp();
        if constexpr (kIsCheckable) {
          ptx::mbarrier_arrive_if(true, ring.empty + 8 * taken);
        } else {
          ptx::mbarrier_arrive_if(lane == k, ring.empty + 8 * own);
        }
      }
      i += n_ready;
    }
    slot = next;
    go_on(own_place);
    is_full = 0;
  }

 private:
  // n stages are taken: n_far goes down, and when it gets to 0 the block allows fewer copies, since
  // those in flight delay the exchange that follows.
  __device__ void count_down(const StepRing& ring, int n) {
    allow_copies_if(n_far > 0 && n_far <= n, ring.most_copies, ring.copies_near);
    n_far -= n;
  }

  // Asks until the warp's next stages are there. All lanes get the same answer. waits: whether it
  // is known that they were not.
  template <typename F>
  __device__ void await(bool waits, F are_there) {
    uint32_t began = waits ? clock.now() : 0;
    for (;; waits = true) {
      if (are_there()) {
        if (waits) clock.end_wait(began);
        break;
      }
      if (!waits) began = clock.now();
      ptx::before_next_try();
    }
    __syncwarp();  // makes the copies that one lane has seen visible to all lanes
  }
  __device__ void go_on(int n) {
    slot += n;
    const bool wraps = slot >= n_slots;
    slot -= wraps ? n_slots : 0;
    parity ^= int(wraps);
  }
};

}  // namespace minfer::cuda
