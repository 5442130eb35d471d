#pragma once

#include "kernels/cuda/decode/persistent/step_exchange.cuh"
#include "kernels/cuda/decode/persistent/step_params.h"
#include "kernels/cuda/ptx.cuh"

namespace minfer::cuda {

// Counts where a block's clocks go, as thread 0 sees it. The sums are in device memory
// (StepParams::clocks), which the thread adds to without waiting for it.
class StepClock {
 public:
  // The step begins.
  __device__ explicit StepClock(const StepParams& p)
      : own_(thread_index() == 0 ? p.clocks + blockIdx.x : nullptr), since_(now()) {
    if (own_ != nullptr) add(own_->nanoseconds, 0 - ptx::global_timer());
  }

  // A part ends that began where the one before it ended. `row`: of StepClocks::parts.
  __device__ void end(int row, StepPart part) {
    if (own_ == nullptr) return;
    const uint32_t ended = ptx::read_clock();
    add(own_->parts[row][part], ended - since_);
    since_ = ended;
  }
  // The same for a part that has taken stages of the ring.
  __device__ void end_multiply(int row) {
    end(row, kMultiply);
    if (own_ == nullptr) return;
    add(own_->parts[row][kRing], waited_);
    waited_ = 0;
  }
  __device__ void end_step() const {
    if (own_ == nullptr) return;
    add(own_->nanoseconds, ptx::global_timer());
    add(own_->n_steps, 1);
  }

  // The clock, or 0 if this thread does not count.
  __device__ uint32_t now() const { return own_ != nullptr ? ptx::read_clock() : 0; }
  // A wait for the ring ends that began at `began`, as now() said.
  __device__ void end_wait(uint32_t began) { waited_ += now() - began; }

 private:
  static __device__ void add(unsigned long long& sum, unsigned long long n) { atomicAdd(&sum, n); }

  StepClocks* own_;  // null in other threads
  uint32_t since_, waited_ = 0;
};

// In an instance that does not count: marks alone cost a step of INT4 0.6 %, since the code of a
// phase is fetched anew in each layer.
struct NoClock {
  __device__ explicit NoClock(const StepParams&) {}
  __device__ void end(int, StepPart) {}
  __device__ void end_multiply(int) {}
  __device__ void end_step() const {}
  __device__ uint32_t now() const { return 0; }
  __device__ void end_wait(uint32_t) {}
};

}  // namespace minfer::cuda
