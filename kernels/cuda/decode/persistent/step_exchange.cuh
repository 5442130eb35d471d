#pragma once

#include <cstdint>
#include <utility>

#include "kernels/cuda/decode/persistent/step_params.h"
#include "kernels/cuda/ptx.cuh"

// How blocks that run at the same time exchange vectors: in flagged words of 16 bytes. A word holds
// four floats of 28 bits; the last 4 bits of each hold a quarter of a 16-bit epoch. A word is read
// and written as a whole (b128 is atomic on sm_90), so no other flag and no fence is needed: a
// reader polls the words of a vector until all carry the epoch that it waits for. Word i has
// elements 4 i ... 4 i + 3 of its vector. Every vector of a layer has words of its own, and every
// layer of a step has its own epoch, so words are cleared only before epochs begin at 1 again.
//
// No word is overwritten early: a block overwrites vector V only after it has read a later vector
// W, and W is complete only when every reader of V has finished. For this, a block reads V only if
// it contributes to a vector that is computed from V. With norms behind, blocks without rows of q,
// k and v read rows of down all the same: all blocks contribute to `hidden` then, which is complete
// before the next rows of down.
namespace minfer::cuda {

__device__ inline int thread_index() { return ptx::read_thread_index(); }

// A number that all lanes have, which the compiler then knows. All lanes call it.
__device__ inline int same_in_all_lanes(int x) { return __shfl_sync(~0u, x, 0); }
// The same for a constant, which the compiler would load again each time, at 30 clocks. From a
// shuffle it keeps it, but not from one of what it knows to be the same in all lanes; so only the
// first lane has it here.
__device__ inline int kept_in_register(int x) {
  return same_in_all_lanes(thread_index() % 32 == 0 ? x : 0);
}
__device__ inline int kept_if(bool keeps, int x) { return keeps ? kept_in_register(x) : x; }
// The same for a number that differs between lanes, which the compiler would compute again in each
// turn of a loop.
__device__ inline int kept_of_lane(int x) { return __shfl_xor_sync(~0u, x, 0); }

// ptx::warp_index() from thread_index(), which is read anew each time: from a kept one, two tokens
// of INT4 spill 36 bytes in place of 4.
__device__ inline int warp_index() { return same_in_all_lanes(thread_index() / 32); }

// The value of a float that a reader finds in a flagged word.
__device__ inline float through_word(float x) { return __uint_as_float(__float_as_uint(x) & ~15u); }

struct StepWord {
  uint32_t bits[4];
  __device__ float at(int i) const { return __uint_as_float(bits[i] & ~15u); }
  // Zeros that carry an epoch.
  static __device__ StepWord of(uint32_t epoch) {
    return {{epoch & 15u, epoch >> 4 & 15u, epoch >> 8 & 15u, epoch >> 12 & 15u}};
  }
  __device__ bool is_of(uint32_t epoch) const {
    return (((bits[0] ^ epoch) | (bits[1] ^ epoch >> 4) | (bits[2] ^ epoch >> 8) |
             (bits[3] ^ epoch >> 12)) &
            15u) == 0;
  }
  __device__ void drop_epoch() {
    for (uint32_t& x : bits) x &= ~15u;
  }
};

// Reads from[kAt]; the offset is an immediate of the instruction.
template <int kAt = 0>
__device__ inline StepWord load_word(const uint4* from) {
  uint64_t low, high;
  ptx::load_word<kAt>(low, high, from);
  return {{uint32_t(low), uint32_t(low >> 32), uint32_t(high), uint32_t(high >> 32)}};
}
__device__ inline StepWord load_plain(const float* from) {
  const uint4 x = __ldcg(reinterpret_cast<const uint4*>(from));
  return {{x.x, x.y, x.z, x.w}};
}
// The same for a word that another card writes.
__device__ inline StepWord load_word_of_peer(const uint4* from) {
  uint64_t low, high;
  ptx::load_word_of_peer(low, high, from);
  return {{uint32_t(low), uint32_t(low >> 32), uint32_t(high), uint32_t(high >> 32)}};
}
// The same as load_word if `reads` is not 0, else it leaves the word as it is.
template <int kAt>
__device__ inline void load_word_if(uint32_t reads, StepWord& word, const uint4* from) {
  uint64_t low = uint64_t{word.bits[1]} << 32 | word.bits[0];
  uint64_t high = uint64_t{word.bits[3]} << 32 | word.bits[2];
  ptx::load_word_if<kAt>(reads, low, high, from);
  word = {{uint32_t(low), uint32_t(low >> 32), uint32_t(high), uint32_t(high >> 32)}};
}
enum class WordReader { OwnCard, Peer };
template <WordReader kReader = WordReader::OwnCard>
__device__ inline void store_word(uint4* to, float a, float b, float c, float d, uint32_t epoch) {
  const auto bits = [&](float x, int shift) {
    return (__float_as_uint(x) & ~15u) | (epoch >> shift & 15u);
  };
  const uint64_t low = uint64_t{bits(b, 4)} << 32 | bits(a, 0);
  const uint64_t high = uint64_t{bits(d, 12)} << 32 | bits(c, 8);
  kReader == WordReader::Peer ? ptx::store_word_to_peer(to, low, high)
                              : ptx::store_word(to, low, high);
}

// Ends the launch with an error if a word does not come within 20 seconds, so that a block that has
// failed cannot hang the card.
struct Patience {
  uint32_t tries = 0;
  uint64_t since = 0;
  __device__ void try_again() {
    ptx::before_next_try();
    if ((++tries & 0x3fff) != 0) [[likely]]
      return;
    const uint64_t now = ptx::global_timer();
    if (since == 0) since = now;
    if (now - since > 20'000'000'000ull) __trap();
  }
};

// f<0>(), f<1>() ... f<kN - 1>()
template <int kN, typename F>
__device__ inline void for_each_index(F&& f) {
  [&]<int... k>(std::integer_sequence<int, k...>) { (f.template operator()<k>(), ...); }
  (std::make_integer_sequence<int, kN>());
}

// Whether all words carry an epoch. This code runs once behind each wait, so that its instructions
// count: one for each float, in four chains.
template <int kN>
__device__ inline bool are_of(const StepWord (&words)[kN], uint32_t epoch) {
  uint32_t wrong[4] = {};
#pragma unroll
  for (const StepWord& word : words) {
#pragma unroll
    for (int i = 0; i < 4; ++i) wrong[i] |= word.bits[i] ^ epoch >> 4 * i;
  }
  return ((wrong[0] | wrong[1] | wrong[2] | wrong[3]) & 15u) == 0;
}

// Reads words from[kPlace(k)] for every k with kPlace(k) < n, and sets the others to zero; all
// still carry the epoch. It loads all words at once, then again those that do not carry the epoch
// yet, of more than 12 all, until all do. A single place in the code loads them, so that the words
// stay in their registers. The words of a second token follow those of the first, and lie of_token
// behind them. All lanes of a warp call it, and leave together.
template <int (*kPlace)(int), int kTokens = 1, int kN>
__device__ inline void await_words(StepWord (&words)[kN], const uint4* from, int n, uint32_t epoch,
                                   int64_t of_token = 0) {
  constexpr int kOfToken = kN / kTokens;
  unsigned missing = 0;
#pragma unroll
  for (int k = 0; k < kN; ++k) {
    words[k] = StepWord::of(epoch);
    if (kPlace(k % kOfToken) < n) missing |= 1u << k;
  }
  for (Patience patience;;) {
    for_each_index<kN>([&]<int k>() {
      load_word_if<kPlace(k % kOfToken)>(missing & 1u << k, words[k],
                                         from + k / kOfToken * of_token);
    });
    if (__all_sync(~0u, are_of(words, epoch))) return;
    // Beside more words there are no registers for this.
    if constexpr (kN <= 12) {
#pragma unroll
      for (int k = 0; k < kN; ++k) {
        if (words[k].is_of(epoch)) missing &= ~(1u << k);
      }
    }
    patience.try_again();
  }
}

// Reads the words `from`, where `wants`, until they carry the epoch; `words`: what was read before.
// All lanes of a warp call it, and leave together.
template <int kN>
__device__ inline void await_each(StepWord (&words)[kN], const uint4* const (&from)[kN], bool wants,
                                  uint32_t epoch) {
  for (Patience patience; !__all_sync(~0u, !wants || are_of(words, epoch)); patience.try_again()) {
#pragma unroll
    for (int k = 0; k < kN; ++k) load_word_if<0>(wants, words[k], from[k]);
  }
}

// The token whose rows a thread publishes, and its place among the threads that do.
template <typename I>
__device__ inline int token_of_thread() {
  return I::kTokens == 1 ? 0 : thread_index() / I::kThreadsOfToken;
}
template <typename I>
__device__ inline int thread_of_token() {
  return I::kTokens == 1 ? thread_index() : thread_index() % I::kThreadsOfToken;
}

// A barrier of the consumer warps.
__device__ inline void consumers_sync() { ptx::named_barrier<1, kStepConsumers>(); }

// Writes a vector of n elements to the flagged words `to`; n and first are multiples of 4. A thread
// passes the value of element first + thread_index(). All lanes call it.
template <WordReader kReader = WordReader::OwnCard>
__device__ inline void publish(uint4* to, int first, int n, float value, uint32_t epoch) {
  const float b = __shfl_down_sync(~0u, value, 1), c = __shfl_down_sync(~0u, value, 2);
  const float d = __shfl_down_sync(~0u, value, 3);
  const int i = first + thread_index();
  if (i % 4 == 0 && i < n) store_word<kReader>(to + i / 4, value, b, c, d, epoch);
}

}  // namespace minfer::cuda
