#include "kernels/comm/ring.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/comm/exchange.h"
#include "kernels/cuda/ptx.cuh"

namespace minfer::cuda {
namespace {

constexpr int kThreads = 512;
constexpr uint64_t kDeadline = 10'000'000'000ull;  // ns

// Ends a wait for another card after the deadline, or at once if an earlier wait of this card has
// failed: a pass may have many kernels queued.
struct Deadline {
  uint32_t tries = 0;
  uint64_t since = 0;
  __device__ bool is_over(const Ranks& r) {
    if ((++tries & 0x3ff) != 0) return false;
    if (*static_cast<volatile int*>(r.failed) != 0) return true;
    const uint64_t now = ptx::global_timer();
    if (since == 0) since = now;
    return now - since > kDeadline;
  }
};

__device__ inline uint64_t load_acquire(const uint64_t* from) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}
__device__ inline void store_release(uint64_t* to, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}
__device__ inline uint32_t load_acquire(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
__device__ inline void store_release(uint32_t* to, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
// Words of two floats, each followed by the epoch: a word is read and written as a whole, so it
// needs no flag beside it and no fence.
__device__ inline uint4 load_word(const uint4* from) {
  uint4 word;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
               : "l"(from)
               : "memory");
  return word;
}
__device__ inline void store_word(uint4* to, const uint4& word) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(word.x),
               "r"(word.y), "r"(word.z), "r"(word.w)
               : "memory");
}

// Each rank sends its words to all others, then adds those of all ranks.
//
//   x        [n] F32, in place
//   launch   a thread makes one word: two elements
//   requires the two parities of a mailbox take turns: a rank sends words of epoch e + 2 only after
//            it has those of e + 1 from all ranks, which had read the words of e by then
//   maths    sums in the order of the ranks: the same bits on all
//   moves    8 n bytes to each peer
__global__ void __launch_bounds__(kThreads)
    one_shot_kernel(const __grid_constant__ Ranks r, float* x, int n, uint32_t epoch) {
  const int i = blockIdx.x * kThreads + threadIdx.x, n_words = (n + 1) / 2;
  if (i >= n_words) return;
  const bool is_whole = 2 * i + 1 < n;
  const float own[2] = {x[2 * i], is_whole ? x[2 * i + 1] : 0};
  const size_t parity = size_t(epoch & 1) * r.n_ranks * kOneShotWords;
  const uint4 word = {__float_as_uint(own[0]), epoch, __float_as_uint(own[1]), epoch};
  for (int d = 1; d < r.n_ranks; ++d) {
    const int peer = (r.rank + d) % r.n_ranks;
    store_word(r.mailbox[peer].words + parity + size_t(r.rank) * kOneShotWords + i, word);
  }
  float sum[2] = {};
  for (int rank = 0; rank < r.n_ranks; ++rank) {
    float value[2] = {own[0], own[1]};
    if (rank != r.rank) {
      const uint4* const from = r.mailbox[r.rank].words + parity + size_t(rank) * kOneShotWords + i;
      uint4 got = load_word(from);
      for (Deadline deadline; got.y != epoch || got.w != epoch; got = load_word(from)) {
        if (deadline.is_over(r)) {
          *r.failed = rank + 1;
          return;
        }
      }
      value[0] = __uint_as_float(got.x);
      value[1] = __uint_as_float(got.z);
    }
    sum[0] += value[0];
    sum[1] += value[1];
  }
  x[2 * i] = sum[0];
  if (is_whole) x[2 * i + 1] = sum[1];
}

// The ring of kernels/comm/ring.h, each channel a block by itself.
//
//   x        [4 n_words] F32, in place
//   launch   kRingChannels blocks. A block has a range of each chunk, which travels in pieces of at
//            most a slot. Of 2 n - 1 turns for each piece, the first only sends, the last only
//            receives; a turn that does both sends on what it has received
//   requires slots and counters are left by the kernel before as it needs them: they go on counting
//   maths    f32 sums in the order of the ring: the same bits on all ranks
//   moves    2 (n_ranks - 1) / n_ranks of x to the next rank
__global__ void __launch_bounds__(kThreads)
    ring_kernel(const __grid_constant__ Ranks r, float4* x, int64_t n_words) {
  const int n = r.n_ranks, next = (r.rank + 1) % n, before = (r.rank + n - 1) % n;
  const int channel = blockIdx.x;
  RingChannel* const own = r.mailbox[r.rank].channels + channel;
  uint64_t* const next_arrived = &r.mailbox[next].channels[channel].arrived;
  uint64_t* const before_freed = &r.mailbox[before].channels[channel].freed;
  const size_t inbox = size_t(channel) * kRingSlots * kRingSlotBytes;
  const char* const in_slots = r.mailbox[r.rank].inbox + inbox;
  char* const out_slots = r.mailbox[next].inbox + inbox;
  uint64_t sent = own->sent, received = own->received;
  __shared__ int s_failed;

  constexpr int64_t kSlotWords = kRingSlotBytes / 16;
  const int64_t longest = n_words / n + (n_words % n != 0);  // words of the longest chunk
  const int64_t begin = chunk_begin(longest, kRingChannels, channel);
  const int64_t end = chunk_begin(longest, kRingChannels, channel + 1);
  for (int64_t at = begin; at < end; at += kSlotWords) {
    for (int turn = 0; turn < 2 * n - 1; ++turn) {
      const bool receives = turn > 0, sends = turn < 2 * n - 2, reduces = turn < n;
      const bool is_whole = turn >= n - 1;  // the sum of all ranks
      const int chunk = receives ? ring_step(n, r.rank, turn - 1).receive : r.rank;
      const int64_t first = chunk_begin(n_words, n, chunk);
      const int64_t length = chunk_begin(n_words, n, chunk + 1) - first;
      const int n_here = int(max(int64_t{0}, min(min(kSlotWords, end - at), length - at)));
      float4* const local = x + first + at;
      if (threadIdx.x == 0) {
        s_failed = 0;
        Deadline deadline;
        while (receives && s_failed == 0 && load_acquire(&own->arrived) < received + 1) {
          if (deadline.is_over(r)) s_failed = before + 1;
        }
        while (sends && s_failed == 0 && sent >= kRingSlots &&
               load_acquire(&own->freed) < sent + 1 - kRingSlots) {
          if (deadline.is_over(r)) s_failed = next + 1;
        }
      }
      __syncthreads();
      if (s_failed != 0) {
        if (threadIdx.x == 0) *r.failed = s_failed;
        return;
      }
      const auto* const in =
          reinterpret_cast<const float4*>(in_slots + received % kRingSlots * kRingSlotBytes);
      auto* const out = reinterpret_cast<float4*>(out_slots + sent % kRingSlots * kRingSlotBytes);
      constexpr int kAtOnce = 4;
      for (int i = threadIdx.x; i < n_here; i += kThreads * kAtOnce) {
        float4 v[kAtOnce], w[kAtOnce];
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          const int j = i + k * kThreads;
          if (j >= n_here) break;
          if (receives) v[k] = __ldcv(in + j);
          if (reduces) w[k] = local[j];
        }
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          const int j = i + k * kThreads;
          if (j >= n_here) break;
          if (!receives) {
            v[k] = w[k];
          } else if (reduces) {
            v[k] = {v[k].x + w[k].x, v[k].y + w[k].y, v[k].z + w[k].z, v[k].w + w[k].w};
          }
          if (sends) out[j] = v[k];
          if (is_whole) local[j] = v[k];
        }
      }
      __syncthreads();  // orders the block's stores before the releases
      if (threadIdx.x == 0) {
        if (receives) store_release(before_freed, received + 1);
        if (sends) store_release(next_arrived, sent + 1);
      }
      received += receives;
      sent += sends;
    }
  }
  if (threadIdx.x == 0) {
    own->sent = sent;
    own->received = received;
  }
}

__global__ void barrier_kernel(const __grid_constant__ Ranks r, uint32_t epoch) {
  const int peer = threadIdx.x;
  if (peer >= r.n_ranks || peer == r.rank) return;
  store_release(&r.mailbox[peer].flags[r.rank], epoch);
  const uint32_t* const from = &r.mailbox[r.rank].flags[peer];
  // The difference is right where the counter wraps, too.
  for (Deadline deadline; int(load_acquire(from) - epoch) < 0;) {
    if (deadline.is_over(r)) {
      *r.failed = peer + 1;
      return;
    }
  }
}

struct Outs {
  float* of_rank[kMostRanks];
};

__global__ void send_columns_kernel(Outs outs, int n_ranks, const float* part, int64_t n_elements,
                                    int width, int begin, int n) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n_elements) return;
  const int64_t row = i / width, at = row * n + begin + (i - row * width);
  const float value = part[i];
  for (int rank = 0; rank < n_ranks; ++rank) outs.of_rank[rank][at] = value;
}

__device__ inline uint4 pattern(int i, uint32_t seed) {
  const uint32_t x = (uint32_t(i) + 1) * 2654435761u ^ seed;
  return {x, x * 2246822519u, ~x, x ^ 0xa5a5a5a5u};
}
__global__ void write_pattern_kernel(uint4* to, int n, uint32_t seed) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i < n) to[i] = pattern(i, seed);
}
__global__ void count_wrong_kernel(const uint4* from, int n, uint32_t seed, int* n_wrong) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= n) return;
  const uint4 got = from[i], want = pattern(i, seed);
  if (got.x != want.x || got.y != want.y || got.z != want.z || got.w != want.w) {
    atomicAdd(n_wrong, 1);
  }
}

unsigned blocks_for(int64_t n) { return unsigned((n + kThreads - 1) / kThreads); }

}  // namespace

void one_shot_all_reduce(cudaStream_t stream, const Ranks& ranks, float* x, int n, uint32_t epoch) {
  one_shot_kernel<<<blocks_for((n + 1) / 2), kThreads, 0, stream>>>(ranks, x, n, epoch);
  MINFER_CUDA_CHECK(cudaGetLastError());
}

void ring_all_reduce(cudaStream_t stream, const Ranks& ranks, float* x, int64_t n) {
  ring_kernel<<<kRingChannels, kThreads, 0, stream>>>(ranks, reinterpret_cast<float4*>(x), n / 4);
  MINFER_CUDA_CHECK(cudaGetLastError());
}

void cards_barrier(cudaStream_t stream, const Ranks& ranks, uint32_t epoch) {
  barrier_kernel<<<1, 32, 0, stream>>>(ranks, epoch);
  MINFER_CUDA_CHECK(cudaGetLastError());
}

void send_columns(cudaStream_t stream, const Ranks& ranks, float* const* outs, const float* part,
                  int n_rows, int width, int begin, int n) {
  const int64_t n_elements = int64_t{n_rows} * width;
  if (n_elements == 0) return;
  Outs all{};
  for (int rank = 0; rank < ranks.n_ranks; ++rank) all.of_rank[rank] = outs[rank];
  send_columns_kernel<<<blocks_for(n_elements), kThreads, 0, stream>>>(all, ranks.n_ranks, part,
                                                                       n_elements, width, begin, n);
  MINFER_CUDA_CHECK(cudaGetLastError());
}

void write_pattern(cudaStream_t stream, uint4* to, int n, uint32_t seed) {
  write_pattern_kernel<<<blocks_for(n), kThreads, 0, stream>>>(to, n, seed);
  MINFER_CUDA_CHECK(cudaGetLastError());
}

void count_wrong(cudaStream_t stream, const uint4* from, int n, uint32_t seed, int* n_wrong) {
  count_wrong_kernel<<<blocks_for(n), kThreads, 0, stream>>>(from, n, seed, n_wrong);
  MINFER_CUDA_CHECK(cudaGetLastError());
}

}  // namespace minfer::cuda
