#pragma once

#include "kernels/cuda/decode/persistent/step_exchange.cuh"
#include "kernels/cuda/decode/persistent/step_params.h"
#include "kernels/cuda/ptx.cuh"

namespace minfer::cuda {

// Counts where a block's clocks go, as thread 0 sees it, if StepParams::clocks is not null. The
// sums are in device memory, which the thread adds to without waiting for it. All threads call all
// functions, and branch alike but for that addition.
class StepClock {
 public:
  // The step begins.
  __device__ explicit StepClock(const StepParams& p) : p_(p), since_(now()) {
    if (counts()) add(own().nanoseconds, 0 - ptx::global_timer());
  }

  // A part ends that began where the one before it ended. `row`: of StepClocks::parts.
  __device__ void end(int row, StepPart part) {
    if (!is_on()) return;
    const uint32_t ended = now();
    if (counts()) add(own().parts[row][part], ended - since_);
    since_ = ended;
  }
  // The same for a part that has taken stages of the ring.
  __device__ void end_multiply(int row) {
    end(row, kMultiply);
    if (counts()) add(own().parts[row][kRing], waited_);
    waited_ = 0;
  }
  __device__ void end_step() {
    if (!counts()) return;
    add(own().nanoseconds, ptx::global_timer());
    add(own().n_steps, 1);
  }

  // The clock, or 0 if clocks are not counted.
  __device__ uint32_t now() const { return is_on() ? ptx::read_clock() : 0; }
  // A wait for the ring ends that began at `began`, as now() said.
  __device__ void end_wait(uint32_t began) { waited_ += now() - began; }

 private:
  __device__ bool is_on() const { return p_.clocks != nullptr; }
  __device__ bool counts() const { return is_on() && thread_index() == 0; }
  __device__ StepClocks& own() const { return p_.clocks[blockIdx.x]; }
  static __device__ void add(unsigned long long& sum, unsigned long long n) { atomicAdd(&sum, n); }

  const StepParams& p_;
  uint32_t since_, waited_ = 0;
};

}  // namespace minfer::cuda
