#pragma once

#include <algorithm>

#include "kernels/comm/ring.h"
#include "kernels/cuda/comm/exchange.h"
#include "kernels/cuda/deadline.cuh"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/ptx.cuh"

// How kernels wait for other cards, and how they pack and share out what they send.
namespace minfer::cuda {

__device__ inline uint64_t load_acquire(const uint64_t* from) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}
__device__ inline void store_release(uint64_t* to, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

__device__ inline void store_relaxed(uint64_t* to, uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

// A block of the ring and of the two-shot kernel: worker warps that move words, and a warp that
// tells the other cards. Its fence waits until the words have crossed the link, about a
// microsecond, in which the workers begin the next ones.
constexpr int kWorkers = 480, kChannelThreads = kWorkers + 32;  // of 128 registers
constexpr int kWordsAtOnce = 4;                                 // of a worker, in flight together

// The words of a block: a range of each chunk, where the chunks are the ranks' slices of n_words.
struct ChannelRange {
  int64_t begin, end;
};
__device__ inline ChannelRange channel_range(int64_t n_words, int n_ranks) {
  const int64_t longest = n_words / n_ranks + (n_words % n_ranks != 0);  // of the chunks
  const int n_channels = int(gridDim.x), channel = int(blockIdx.x);
  return {chunk_begin(longest, n_channels, channel), chunk_begin(longest, n_channels, channel + 1)};
}
// Blocks for as many words: as many as are given, if a worker has a word of each chunk.
inline unsigned channels_for(int64_t n_words, int n_ranks, int n_channels) {
  const int64_t needed = ceil_div(ceil_div(n_words, int64_t{n_ranks}), int64_t{kWorkers});
  return unsigned(std::min(needed, int64_t{std::min(n_channels, kMostChannels)}));
}

// Waits until *count, which the rank `from` writes, is at least `wanted`. False after the deadline.
__device__ inline bool wait_for_count(const Ranks& r, const uint64_t* count, uint64_t wanted,
                                      int from) {
  for (Deadline deadline{r.failed}; load_acquire(count) < wanted;) {
    if (deadline.is_over(from)) return false;
  }
  return true;
}

// The rank `distance` behind a rank, 0 <= distance < n_ranks.
__device__ inline int rank_after(const Ranks& r, int rank, int distance) {
  const int sum = rank + distance;
  return sum < r.n_ranks ? sum : sum - r.n_ranks;
}

// The kN floats of a packed vector, and their sum with another one's.
template <typename T, int kN>
__device__ void add_to(float (&sum)[kN], const Vec<T, kN>& x) {
#pragma unroll
  for (int i = 0; i < kN; ++i) sum[i] += to_float(x[i]);
}
template <typename T, int kN>
__device__ Vec<T, kN> rounded(const float (&x)[kN]) {
  Vec<T, kN> packed;
#pragma unroll
  for (int i = 0; i < kN; ++i) packed[i] = from_float<T>(x[i]);
  return packed;
}
template <typename T, int kN>
__device__ Vec<T, kN> sum_of(const Vec<T, kN>& a, const Vec<T, kN>& b) {
  Vec<T, kN> sum;
#pragma unroll
  for (int i = 0; i < kN; ++i) sum[i] = from_float<T>(to_float(a[i]) + to_float(b[i]));
  keep_packed(sum);
  return sum;
}
// A 16-byte word from L2, without L1: another card may have written it.
template <typename T>
__device__ Vec<T> load_shared_word(const Vec<T>* from) {
  const uint4 bits = __ldcg(reinterpret_cast<const uint4*>(from));
  Vec<T> word = *reinterpret_cast<const Vec<T>*>(&bits);
  keep_packed(word);
  return word;
}

// residual[i] += v for the elements of 16-byte words k of `residual`, word_of(k), as far as they
// are below `end`. Two words at a time: their loads are in flight together, and do not spill.
template <typename T, typename F>
__device__ void add_words(float* residual, const Vec<T> (&v)[kWordsAtOnce], F&& word_of,
                          int64_t end) {
  constexpr int kVecs = Vec<T>::kSize / 4;
#pragma unroll
  for (int half = 0; half < kWordsAtOnce; half += 2) {
    float4 x[2][kVecs];
    const auto at = [&](int k, int i) {
      return reinterpret_cast<float4*>(residual) + word_of(half + k) * kVecs + i;
    };
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      if (word_of(half + k) >= end) continue;
#pragma unroll
      for (int i = 0; i < kVecs; ++i) x[k][i] = *at(k, i);
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      if (word_of(half + k) >= end) continue;
#pragma unroll
      for (int i = 0; i < kVecs; ++i) {
        const Vec<T>& addend = v[half + k];
        x[k][i].x += to_float(addend[4 * i]);
        x[k][i].y += to_float(addend[4 * i + 1]);
        x[k][i].z += to_float(addend[4 * i + 2]);
        x[k][i].w += to_float(addend[4 * i + 3]);
        *at(k, i) = x[k][i];
      }
    }
  }
}

}  // namespace minfer::cuda
