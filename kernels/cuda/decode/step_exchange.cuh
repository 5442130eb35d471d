#pragma once

#include <cstdint>

#include "kernels/cuda/decode/step_params.h"

// How vectors travel between blocks that run at the same time: in words of 16 bytes, three floats
// and the epoch in which they were written. A word is read and written as a whole (b128 is atomic
// on sm_90), so no flag and no fence is needed: who waits for a vector reads its words until all
// carry the epoch. Every vector of a layer has words of its own, and the epoch is a layer of a
// step, so nothing is cleared. A block writes a vector again only after it has read another one to
// which every block contributes after having read the first: nobody's words are overwritten early.
namespace minfer::cuda {

struct StepWord {
  float at[3];
  uint32_t epoch;
};

__device__ inline StepWord load_word(const uint4* from) {
  uint64_t low, high;
  asm volatile(
      "{\n.reg .b128 w;\nld.relaxed.gpu.global.b128 w, [%2];\nmov.b128 {%0, %1}, w;\n}"
      : "=l"(low), "=l"(high)
      : "l"(from)
      : "memory");
  return {{__uint_as_float(uint32_t(low)), __uint_as_float(uint32_t(low >> 32)),
           __uint_as_float(uint32_t(high))},
          uint32_t(high >> 32)};
}
__device__ inline void store_word(uint4* to, float a, float b, float c, uint32_t epoch) {
  const uint64_t low = uint64_t{__float_as_uint(b)} << 32 | __float_as_uint(a);
  const uint64_t high = uint64_t{epoch} << 32 | __float_as_uint(c);
  asm volatile(
      "{\n.reg .b128 w;\nmov.b128 w, {%1, %2};\nst.relaxed.gpu.global.b128 [%0], w;\n}" ::"l"(to),
      "l"(low), "l"(high)
      : "memory");
}

// Ends the launch with an error where a word does not come within seconds: a block that is gone
// must not hang the card.
struct Patience {
  uint32_t tries = 0;
  uint64_t since = 0;
  __device__ void try_again() {
    if ((++tries & 0x3fff) != 0) return;
    uint64_t now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    if (since == 0) since = now;
    if (now - since > 4'000'000'000ull) __trap();
  }
};

// The words from[i] of this epoch, for i < n in steps of kStepConsumers from the thread's index on:
// all asked for at once, and again until they are there.
template <int kN>
__device__ inline void read_words(StepWord (&words)[kN], const uint4* from, int n, uint32_t epoch) {
#pragma unroll
  for (int k = 0; k < kN; ++k) {
    const int i = int(threadIdx.x) + k * kStepConsumers;
    if (i < n) words[k] = load_word(from + i);
  }
  Patience patience;
#pragma unroll
  for (int k = 0; k < kN; ++k) {
    const int i = int(threadIdx.x) + k * kStepConsumers;
    if (i >= n) break;
    while (words[k].epoch != epoch) {
      words[k] = load_word(from + i);
      patience.try_again();
    }
  }
}

__device__ inline void consumers_sync() {
  asm volatile("bar.sync 1, %0;" ::"n"(kStepConsumers) : "memory");
}

// Threads have rows in threes: lanes 0 to 29 of each warp one each, so that the first of three can
// gather a word from its neighbours. -1: none.
constexpr int kRowThreads = 30 * kStepWarps;
__device__ inline int row_of_thread() {
  const int lane = int(threadIdx.x) % 32;
  return lane < 30 ? int(threadIdx.x) / 32 * 30 + lane : -1;
}

// Writes words of a vector from rows, this thread's being first + row_of_thread(): row / 3 of `to`, as
// far as n_words. All lanes call it; first is a multiple of 3.
__device__ inline void publish_rows(uint4* to, int first, int n_words, float value,
                                    uint32_t epoch) {
  const float b = __shfl_down_sync(~0u, value, 1), c = __shfl_down_sync(~0u, value, 2);
  const int row = row_of_thread();
  if (row < 0 || row % 3 != 0 || first + row >= 3 * n_words) return;
  store_word(to + (first + row) / 3, value, b, c, epoch);
}

}  // namespace minfer::cuda
