#include <algorithm>

#include "kernels/base/math.h"
#include "kernels/base/random.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/sampling/choose_token.h"

namespace minfer::cuda {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;
static_assert(kWarps == 32, "what warps leave is reduced by one warp");
static_assert(kMaxTopK <= kThreads, "a thread has a candidate");

// With random logits, the bound from the best of each thread leaves about 46 candidates for a top_k
// of 40, and 3800 for 1000.
constexpr int kMaxCandidates = 8192;
constexpr int kSharedBytes = kMaxCandidates * int{sizeof(uint64_t)};

// Keys have the order of the floats.
constexpr uint32_t kLeastKey = 0x00800000;  // the least key of a finite float
__device__ uint32_t key_of(float logit) {
  const uint32_t bits = __float_as_uint(logit == 0 ? 0.0f : logit);  // -0 is 0
  return bits >> 31 ? ~bits : bits | 1u << 31;
}
__device__ float logit_of(uint32_t key) {
  return __uint_as_float(key >> 31 ? key ^ 1u << 31 : ~key);
}

// A token with its logit: a larger candidate is better; of equal logits the lower id is larger.
using Candidate = uint64_t;
__device__ Candidate candidate_of(int id, float logit) {
  return Candidate{key_of(logit)} << 32 | ~uint32_t(id);
}
__device__ uint32_t key_of(Candidate candidate) { return uint32_t(candidate >> 32); }
__device__ TokenId id_of(Candidate candidate) { return TokenId(~uint32_t(candidate)); }

// The logits. A thread has every kThreads-th group of four; the last group may be smaller.
struct Logits {
  static constexpr int kAtOnce = 8;  // groups of four that are loaded together

  const float* at;
  int n, n_banned;
  const TokenId* banned;
  bool has_banned = false;  // whether one of this thread's own is banned

  __device__ Logits(const float* logits, const TokenChoice& choice)
      : at(logits), n(choice.n_tokens), n_banned(choice.n_banned), banned(choice.banned) {
#pragma unroll 1
    for (int b = 0; b < n_banned; ++b) has_banned |= banned[b] / 4 % kThreads == int(threadIdx.x);
  }

  __device__ bool is_banned(int id) const {
    bool found = false;
#pragma unroll 1
    for (int b = 0; b < n_banned; ++b) found |= banned[b] == id;
    return found;
  }

  // For this thread's own logits: calls look(logit), and f(id, logit) with ids from low to high,
  // where the logit of a banned token is -inf. It also calls f with -inf for ids that are no token.
  template <typename Look, typename F>
  __device__ void for_each(Look&& look, F&& f) const {
    const int thread = int(threadIdx.x), n_fours = n / 4;
#pragma unroll 1
    for (int first = thread; first < n_fours; first += kAtOnce * kThreads) {
      float x[kAtOnce][4];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int i = first + u * kThreads;
        float4 four = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
        if (i < n_fours) four = reinterpret_cast<const float4*>(at)[i];
        x[u][0] = four.x;
        x[u][1] = four.y;
        x[u][2] = four.z;
        x[u][3] = four.w;
      }
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        if (first + u * kThreads < n_fours) {
#pragma unroll
          for (int e = 0; e < 4; ++e) look(x[u][e]);
        }
      }
      if (has_banned) [[unlikely]] {
#pragma unroll 1
        for (int b = 0; b < n_banned; ++b) {
#pragma unroll
          for (int u = 0; u < kAtOnce; ++u) {
            const int its = banned[b] - 4 * (first + u * kThreads);
#pragma unroll
            for (int e = 0; e < 4; ++e) x[u][e] = its == e ? -INFINITY : x[u][e];
          }
        }
      }
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
#pragma unroll
        for (int e = 0; e < 4; ++e) f(4 * (first + u * kThreads) + e, x[u][e]);
      }
    }
    if (n % 4 == 0 || n_fours % kThreads != thread) return;
    float x[3];
#pragma unroll
    for (int e = 0; e < 3; ++e) x[e] = e < n % 4 ? at[4 * n_fours + e] : -INFINITY;
#pragma unroll
    for (int e = 0; e < 3; ++e) {
      const int id = 4 * n_fours + e;
      if (e < n % 4) look(x[e]);
      f(id, is_banned(id) ? -INFINITY : x[e]);
    }
  }
  template <typename F>
  __device__ void for_each(F&& f) const {
    for_each([](float) {}, f);
  }
};

// The sum over the block. All threads call it; it has a barrier before and after it writes
// `scratch`.
__device__ int block_sum(int value, int (&scratch)[kWarps]) {
  value = __reduce_add_sync(kAllLanes, value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  return __reduce_add_sync(kAllLanes, scratch[threadIdx.x % 32]);
}

// A bound that at least k candidates reach: the k-th best of the threads' best keys, without its
// lower bits. All threads call it; it has barriers inside.
__device__ Candidate bound_of(uint32_t best_key, int k) {
  uint32_t bound = 0;
  for (int bit = 31; bit >= 12; --bit) {
    const uint32_t higher = bound | 1u << bit;
    if (__syncthreads_count(best_key >= higher) >= k) bound = higher;
  }
  return Candidate{max(bound, kLeastKey)} << 32;
}

// The k-th candidate. `bound` is finite, and more than k candidates reach it. All threads call it;
// it has barriers inside.
__device__ Candidate kth_candidate(const Logits& logits, Candidate bound, int k,
                                   int (&scratch)[kWarps]) {
  Candidate kth = 0;
  for (int bit = 63; bit >= 0; --bit) {
    const Candidate higher = kth | Candidate{1} << bit;
    int n = k;  // more than k reach the bound
    if (higher > bound) {
      n = 0;
      logits.for_each([&](int id, float logit) { n += candidate_of(id, logit) >= higher; });
      n = block_sum(n, scratch);
    }
    if (n >= k) kth = higher;
  }
  return kth;
}

// The threads that have a candidate, and the number of candidates found so far.
struct Found {
  int owners[kThreads];
  int n_owners, n;
};

// Stores the candidates that reach the bound in shared memory, in no order, as far as there is
// room. Returns their number, or one above kMaxCandidates. The block divides the logits of those
// threads that have a candidate among all threads. All threads call it; it ends with a barrier.
__device__ int collect(Candidate* candidates, const Logits& logits, uint32_t best_key,
                       Candidate bound, Found& found) {
  const int thread = int(threadIdx.x);
  if (thread == 0) found.n_owners = found.n = 0;
  __syncthreads();
  if (best_key >= key_of(bound)) found.owners[atomicAdd(&found.n_owners, 1)] = thread;
  __syncthreads();
  const int fours = (logits.n + 4 * kThreads - 1) / (4 * kThreads);  // groups of a thread, at most
  bool has_room = true;
#pragma unroll 1
  for (int i = thread; i < found.n_owners * fours && has_room; i += kThreads) {
    const int first = 4 * (found.owners[i / fours] + i % fours * kThreads);
    float x[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] = first + e < logits.n ? logits.at[first + e] : -INFINITY;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const Candidate candidate = candidate_of(first + e, x[e]);
      if (candidate < bound || logits.is_banned(first + e)) continue;
      const int to = atomicAdd(&found.n, 1);
      has_room &= to < kMaxCandidates;
      if (to < kMaxCandidates) candidates[to] = candidate;
    }
  }
  __syncthreads();
  return found.n;
}

// Sorts best first; size is a power of 2. `sync` is a barrier of the n_threads that call.
template <typename Sync>
__device__ void bitonic_sort(Candidate* candidates, int size, int n_threads, Sync&& sync) {
  for (int width = 2; width <= size; width *= 2) {
    for (int distance = width / 2; distance > 0; distance /= 2) {
      for (int pair = int(threadIdx.x); pair < size / 2; pair += n_threads) {
        const int i = 2 * pair - (pair & (distance - 1));
        const Candidate a = candidates[i], b = candidates[i + distance];
        if ((a < b) == ((i & width) == 0)) {
          candidates[i] = b;
          candidates[i + distance] = a;
        }
      }
      sync();
    }
  }
}

// Sorts n candidates best first. All threads call it; it ends with a barrier.
__device__ void sort(Candidate* candidates, int n) {
  int size = 2;
  while (size < n) size *= 2;
  for (int i = n + int(threadIdx.x); i < size; i += kThreads) candidates[i] = 0;
  __syncthreads();
  if (size > 64) {
    bitonic_sort(candidates, size, kThreads, [] { __syncthreads(); });
  } else {
    if (threadIdx.x < 32) bitonic_sort(candidates, size, 32, [] { __syncwarp(); });
    __syncthreads();
  }
}

// The rank that is drawn, of k. One thread adds in the order of rank, so that sums have the bits of
// the sampler's. No loop ends early, so that loads run ahead: as sums never fall, weights never
// rise with the rank, and `left` never rises, the ranks that are counted are the first ones.
__device__ int draw_rank(const double* weights, const double* tempered, int k,
                         const TokenChoice& choice, double draw) {
  int n = k;
  if (choice.top_p < 1 || choice.min_p > 0) {
    double enough = double{INFINITY}, sum = 0;
    if (choice.top_p < 1) {
#pragma unroll 8
      for (int i = 0; i < k; ++i) sum += weights[i];
      enough = double{choice.top_p} * sum;
    }
    sum = weights[0];
    n = 1;
#pragma unroll 8
    for (int i = 1; i < k; ++i) {
      n += sum < enough && weights[i] >= double{choice.min_p};
      sum += weights[i];
    }
  }
  double total = 0;
#pragma unroll 8
  for (int i = 0; i < n; ++i) total += tempered[i];
  double left = __dmul_rn(draw, total);  // not fused with the subtraction below
  int rank = 0;
#pragma unroll 8
  for (int i = 0; i + 1 < n; ++i) {
    left -= tempered[i];
    rank += left >= 0;
  }
  return rank;
}

// chosen = argmax of the logits. With a temperature, it is drawn by weights exp((logit - best) /
// temperature) from the best top_k, of those from the first whose probabilities reach top_p, and of
// those from the ones with at least min_p times the probability of the best: Sampler of
// engine/sampler.h without penalties
//
//   logits   rows of row_stride F32, of which n_tokens are read; aligned to 16 bytes
//   choices  of each row
//   step     for one row alone, its step, which becomes the one behind; the token goes to
//            chosen[pos % 2]. Null: the position is 0, and the token of row r goes to chosen[r]
//   launch   one block of 1024 threads a row, with PDL or without. The best of each thread give a
//            bound for the k-th of all; what reaches it, mostly a few more than k, is collected and
//            sorted in shared memory. If that is too much (equal logits), the k-th is searched for
//            bit by bit, in 40 to 60 passes
//   maths    comparisons are exact; weights and their sums are double, added in the order of rank
//   moves    4 n_tokens bytes a row from L2 once, and the logits of threads with a candidate again
__global__ void __launch_bounds__(kThreads, 1)
    choose_token_kernel(const float* logits, int64_t row_stride, const TokenChoice* choices,
                        StepInput* step, uint32_t epochs_per_step, TokenId* chosen) {
  ptx::wait_for_predecessor();
  extern __shared__ Candidate candidates[];  // [kMaxCandidates]
  __shared__ TokenChoice choice;
  __shared__ int scratch[kWarps];
  __shared__ uint32_t best_keys[kWarps];
  __shared__ Found found;
  const int thread = int(threadIdx.x), row = int(blockIdx.x);
  const StepInput input = step == nullptr ? StepInput{} : *step;
  if (thread < int(sizeof choice / sizeof(uint32_t))) {
    reinterpret_cast<uint32_t*>(&choice)[thread] =
        reinterpret_cast<const uint32_t*>(choices + row)[thread];
  }
  __syncthreads();

  const Logits all(logits + row * row_stride, choice);
  float best = -INFINITY, zero = 0;
  int best_id = -1;
  all.for_each(
      // zero: 0 while all logits are finite, else NaN
      [&](float logit) { zero = fmaf(logit, 0, zero); },
      [&](int id, float logit) {
        if (logit > best) {
          best = logit;
          best_id = id;
        }
      });
  const uint32_t best_key = best_id < 0 ? 0 : key_of(best);

  TokenId id = -1;
  if (__syncthreads_or(zero != 0)) {
    // id stays -1
  } else if (choice.temperature == 0) {
    const uint32_t key = __reduce_max_sync(kAllLanes, best_key);
    const int lowest = int(__reduce_min_sync(kAllLanes, best_key == key ? uint32_t(best_id) : ~0u));
    if (thread % 32 == 0) {
      best_keys[thread / 32] = key;
      scratch[thread / 32] = lowest;
    }
    __syncthreads();
    const uint32_t its_key = best_keys[thread % 32],
                   best_of_all = __reduce_max_sync(kAllLanes, its_key);
    id = TokenId(__reduce_min_sync(kAllLanes,
                                   its_key == best_of_all ? uint32_t(scratch[thread % 32]) : ~0u));
  } else {
    Candidate bound = bound_of(best_key, choice.top_k);
    int n = collect(candidates, all, best_key, bound, found);
    if (n > kMaxCandidates) {
      bound = kth_candidate(all, bound, choice.top_k, scratch);
      n = collect(candidates, all, best_key, bound, found);
    }
    sort(candidates, n);
    const int k = min(choice.top_k, n);
    double* const weights = reinterpret_cast<double*>(candidates + kMaxTopK);
    double* const tempered = weights + kMaxTopK;
    if (thread < k) {
      const double below =
          double{logit_of(key_of(candidates[thread]))} - double{logit_of(key_of(candidates[0]))};
      weights[thread] = exp(below);
      tempered[thread] = exp(below / double{choice.temperature});
    }
    __syncthreads();
    if (thread == 0) {
      const double draw =
          uniform_draw(choice.seed, choice.draw_at_zero + uint64_t(uint32_t(input.pos)));
      id = id_of(candidates[draw_rank(weights, tempered, k, choice, draw)]);
    }
  }
  if (thread > 0) return;
  if (step == nullptr) {
    chosen[row] = id;
  } else {
    chosen[input.pos % 2] = id;
    *step = {{max(id, 0)}, input.pos + 1, epoch_after(input.epoch, epochs_per_step)};
  }
}

void launch_choice(cudaStream_t stream, int64_t n_rows, const float* logits, int64_t row_stride,
                   const TokenChoice* choices, StepInput* step, uint32_t epochs_per_step,
                   TokenId* chosen, bool with_pdl) {
  // The largest carve-out, as the step before it has: changing it takes time.
  MINFER_CUDA_CHECK(cudaFuncSetAttribute(choose_token_kernel,
                                         cudaFuncAttributePreferredSharedMemoryCarveout,
                                         cudaSharedmemCarveoutMaxShared));
  MINFER_CUDA_CHECK(cudaFuncSetAttribute(
      choose_token_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  const unsigned n_blocks = unsigned(n_rows);
  if (with_pdl) {
    launch(choose_token_kernel, dim3(n_blocks), dim3(kThreads), kSharedBytes, stream, logits,
           row_stride, choices, step, epochs_per_step, chosen);
    return;
  }
  choose_token_kernel<<<n_blocks, kThreads, kSharedBytes, stream>>>(logits, row_stride, choices,
                                                                    step, epochs_per_step, chosen);
  MINFER_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

std::optional<TokenChoice> token_choice(const DecodeSampling& sampling, int64_t vocab_size,
                                        int64_t pos) {
  const int64_t n = sampling.n_tokens;
  const int64_t n_banned = std::ssize(sampling.banned);
  if (n < 1 || n > vocab_size || n_banned > kMaxBanned || n_banned >= n) return std::nullopt;
  const int64_t k = sampling.temperature == 0 ? 1
                    : sampling.top_k == 0     ? n
                                              : std::min(n, sampling.top_k);
  if (k > kMaxTopK) return std::nullopt;
  const bool draws = sampling.temperature != 0;
  TokenChoice choice{.seed = draws ? sampling.seed : 0,
                     .draw_at_zero = draws ? sampling.first_draw - uint64_t(pos) : 0,
                     .temperature = sampling.temperature,
                     .top_p = sampling.top_p,
                     .min_p = sampling.min_p,
                     .top_k = narrow<int32_t>(k),
                     .n_tokens = narrow<int32_t>(n),
                     .n_banned = narrow<int32_t>(n_banned),
                     .banned = {}};
  std::copy(sampling.banned.begin(), sampling.banned.end(), choice.banned);
  return choice;
}

void choose_token(cudaStream_t stream, const float* logits, const TokenChoice* choice,
                  StepInput* input, uint32_t epochs_per_step, TokenId* chosen, bool with_pdl) {
  launch_choice(stream, 1, logits, 0, choice, input, epochs_per_step, chosen, with_pdl);
}

void choose_tokens(cudaStream_t stream, Tensor logits, const TokenChoice* choices, TokenId* chosen,
                   bool with_pdl) {
  const int64_t n_rows = logits.shape[0], vocab_size = logits.shape[1];
  MINFER_CHECK(vocab_size % 4 == 0, "rows of ", vocab_size, " logits");
  launch_choice(stream, n_rows, logits.as<const float>(), vocab_size, choices, nullptr, 0, chosen,
                with_pdl);
}

ChoicesOnCard::ChoicesOnCard(int64_t n)
    : host_(static_cast<size_t>(n)),
      card_(allocate_device(DType::U8, {n * int64_t{sizeof(TokenChoice)}})) {
  std::fill_n(host_.data(), n, TokenChoice{});  // top_k 0: unlike any real choice
}

void ChoicesOnCard::set(cudaStream_t stream, std::span<const TokenChoice> choices) {
  MINFER_CHECK(choices.size() <= host_.size(), choices.size(), " choices, there is room for ",
               host_.size());
  if (std::ranges::equal(choices, std::span(host_.data(), choices.size()))) return;
  std::ranges::copy(choices, host_.data());
  MINFER_CUDA_CHECK(cudaMemcpyAsync(card_.view().data, host_.data(), choices.size_bytes(),
                                    cudaMemcpyHostToDevice, stream));
}

}  // namespace minfer::cuda
