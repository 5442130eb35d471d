#include "kernels/cuda/comm/wait.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.cuh"

namespace minfer::cuda {
namespace {

// The elements of the payload in a word. Each half of a word is followed by the epoch: a half is
// written and read as a whole, so it needs no flag beside it and no fence.
template <typename T>
using Part = Vec<T, 8 / sizeof(T)>;

template <typename T>
__device__ void send_word(uint4* to, const Part<T>& part, uint32_t epoch) {
  const uint2 bits = *reinterpret_cast<const uint2*>(&part);
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(bits.x),
               "r"(epoch), "r"(bits.y), "r"(epoch)
               : "memory");
}
// Waits for a word of this epoch from the rank `from`, or until the deadline.
template <typename T>
__device__ Part<T> receive_word(const Ranks& r, const uint4* word, uint32_t epoch, int from) {
  uint2 bits;
  uint32_t epochs[2];
  for (Deadline deadline{r.failed};;) {
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(bits.x), "=r"(epochs[0]), "=r"(bits.y), "=r"(epochs[1])
                 : "l"(word)
                 : "memory");
    if (epochs[0] == epoch && epochs[1] == epoch) break;
    if (deadline.is_over(from)) break;
  }
  return *reinterpret_cast<const Part<T>*>(&bits);
}

// Word i that rank `from` sends to rank `to`.
__device__ inline uint4* word_of(const Ranks& r, int to, int from, uint32_t epoch, int i) {
  return r.mailbox[to].words + (int(epoch & 1) * r.n_ranks + from) * kOneShotWords + i;
}

template <typename T>
__device__ void send_to_others(const Ranks& r, const Part<T>& own, uint32_t epoch, int i) {
  for (int d = 1; d < r.n_ranks; ++d) {
    send_word<T>(word_of(r, rank_after(r, r.rank, d), r.rank, epoch, i), own, epoch);
  }
}

// The sum of word i over all ranks, in their order.
template <typename T>
__device__ void sum_of_ranks(float (&sum)[Part<T>::kSize], const Ranks& r, const Part<T>& own,
                             uint32_t epoch, int i) {
  for (int rank = 0; rank < r.n_ranks; ++rank) {
    const Part<T> part =
        rank == r.rank ? own : receive_word<T>(r, word_of(r, r.rank, rank, epoch, i), epoch, rank);
    if (rank == 0) {
#pragma unroll
      for (int k = 0; k < Part<T>::kSize; ++k) sum[k] = to_float(part[k]);
    } else {
      add_to(sum, part);
    }
  }
}

// The first n elements of a vector; the others are 0, or stay in memory.
template <typename V, typename T>
__device__ V load_some(const T* from, int n, bool is_aligned) {
  if (is_aligned && n == V::kSize) return *reinterpret_cast<const V*>(from);
  V v{};
#pragma unroll
  for (int k = 0; k < V::kSize; ++k) {
    if (k < n) v[k] = from[k];
  }
  return v;
}
template <typename V, typename T>
__device__ void store_some(T* to, const V& v, int n, bool is_aligned) {
  if (is_aligned && n == V::kSize) {
    *reinterpret_cast<V*>(to) = v;
    return;
  }
#pragma unroll
  for (int k = 0; k < V::kSize; ++k) {
    if (k < n) to[k] = v[k];
  }
}

// Each rank sends its words to all others, then adds those of all ranks.
//
//   x         [n] T; the sum replaces it, rounded, if residual is null
//   residual  [n] F32, or null: residual += the sum, which is not rounded before
//   launch    a block has a region of the words; a thread makes one
//   requires  the two parities of a mailbox take turns: a rank sends words of epoch e + 2 of a
//             region only after it has some of e + 1 from all ranks, which had read those of e in
//             an earlier kernel
//   maths     f32 sums in the order of the ranks: the same bits on all
//   moves     twice the bytes of x to each peer
template <typename T>
__global__ void __launch_bounds__(kRegionWords)
    one_shot_kernel(const __grid_constant__ Ranks r, T* x, float* residual, int n,
                    bool is_aligned) {
  using Residual = Vec<float, Part<T>::kSize>;
  if (!r.shares_card) ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  uint32_t* const counter = r.mailbox[r.rank].epochs + blockIdx.x;
  const uint32_t epoch = *counter + 1;
  const int i = int(blockIdx.x * kRegionWords + threadIdx.x), first = i * Part<T>::kSize;
  const int n_here = min(n - first, Part<T>::kSize);
  Part<T> own{};
  if (n_here > 0) {
    own = load_some<Part<T>>(x + first, n_here, is_aligned);
    send_to_others<T>(r, own, epoch, i);
  }
  __syncthreads();  // all have read the counter
  if (threadIdx.x == 0) *counter = epoch;
  if (n_here <= 0) return;
  Residual stream{};
  if (residual) stream = load_some<Residual>(residual + first, n_here, is_aligned);
  float sum[Part<T>::kSize];
  sum_of_ranks<T>(sum, r, own, epoch, i);
  if (residual) {
#pragma unroll
    for (int k = 0; k < Part<T>::kSize; ++k) stream[k] += sum[k];
    store_some(residual + first, stream, n_here, is_aligned);
  } else {
    store_some(x + first, rounded<T>(sum), n_here, is_aligned);
  }
}

constexpr int kMostNormThreads = 1024, kMostNormWords = 4;  // words of a thread

// Words of the mailbox between the first ones of two rows.
constexpr int64_t row_words(int64_t dim) { return align_up(dim / 4, int64_t{kRegionWords}); }

// residual[t] += the sum of part[t] over the ranks
// normed[t] = residual[t] * weight / sqrt(mean(residual[t]^2) + eps)
//
//   residual  [n_rows, dim] F32, part [n_rows, dim] T, dim % 4 == 0, aligned to 16 and 8 bytes
//   normed    [n_rows, dim] T, weight [dim] T, aligned to 8 bytes
//   launch    a block per row, which it keeps in registers: kWords words a thread
//   requires  as one_shot_kernel
//   maths     f32; the sum over the ranks in their order, that of squares by thread, then over
//             lanes and warps in fixed order
//   moves     4 n_rows dim bytes to each peer
template <typename T, int kWords>
__global__ void __launch_bounds__(kMostNormThreads)
    one_shot_norm_kernel(const __grid_constant__ Ranks r, float* residual, const T* part, T* normed,
                         const T* weight, int dim, float eps) {
  using Residual = Vec<float, 4>;
  __shared__ float scratch[32];
  const int n_words = dim / 4, thread = int(threadIdx.x), n_threads = int(blockDim.x);
  Part<T> w[kWords], own[kWords];
  if (!r.shares_card) ptx::let_successor_begin();
#pragma unroll
  for (int k = 0; k < kWords; ++k) {
    const int at = thread + k * n_threads;
    if (at < n_words) w[k] = reinterpret_cast<const Part<T>*>(weight)[at];
  }
  ptx::wait_for_predecessor();
  const int n_regions = (n_words + kRegionWords - 1) / kRegionWords;
  const int region = int(blockIdx.x) * n_regions;
  uint32_t* const counters = r.mailbox[r.rank].epochs + region;
  const int64_t first = int64_t{blockIdx.x} * dim;
  uint32_t epoch[kWords];
#pragma unroll
  for (int k = 0; k < kWords; ++k) {
    const int at = thread + k * n_threads;
    if (at >= n_words) continue;
    epoch[k] = counters[at / kRegionWords] + 1;
    own[k] = reinterpret_cast<const Part<T>*>(part + first)[at];
  }
  const uint32_t counted = thread < n_regions ? counters[thread] : 0;
#pragma unroll
  for (int k = 0; k < kWords; ++k) {
    const int at = thread + k * n_threads;
    if (at < n_words) send_to_others<T>(r, own[k], epoch[k], region * kRegionWords + at);
  }
  Residual stream[kWords] = {};
#pragma unroll
  for (int k = 0; k < kWords; ++k) {
    const int at = thread + k * n_threads;
    if (at < n_words) stream[k] = reinterpret_cast<const Residual*>(residual + first)[at];
  }
  float squares = 0;
#pragma unroll
  for (int k = 0; k < kWords; ++k) {
    const int at = thread + k * n_threads;
    if (at >= n_words) continue;
    float sum[4];
    sum_of_ranks<T>(sum, r, own[k], epoch[k], region * kRegionWords + at);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      stream[k][i] += sum[i];
      squares += stream[k][i] * stream[k][i];
    }
    reinterpret_cast<Residual*>(residual + first)[at] = stream[k];
  }
  const float scale = rsqrtf(block_reduce(squares, Sum{}, 0, scratch) / float(dim) + eps);
  if (thread < n_regions) counters[thread] = counted + 1;  // all have read them: block_reduce
#pragma unroll
  for (int k = 0; k < kWords; ++k) {
    const int at = thread + k * n_threads;
    if (at >= n_words) continue;
    Part<T> out;
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = from_float<T>(stream[k][i] * scale * to_float(w[k][i]));
    reinterpret_cast<Part<T>*>(normed + first)[at] = out;
  }
}

}  // namespace

void one_shot_all_reduce(cudaStream_t stream, const Ranks& ranks, Tensor x, Tensor residual) {
  MINFER_CHECK(x.n_bytes() <= kMostOneShotBytes, "one-shot all-reduce of ", x.dtype, " ", x.shape);
  if (x.n_elements() == 0) return;
  visit_device_float(x.dtype, [&]<typename T>() {
    const auto n_words = ceil_div(x.n_elements(), int64_t{Part<T>::kSize});
    launch(one_shot_kernel<T>, dim3(unsigned(ceil_div(n_words, int64_t{kRegionWords}))),
           dim3(kRegionWords), 0, stream, ranks, data_of<T>(x), data_of<float>(residual),
           int(x.n_elements()), aligned16(x) && aligned16(residual));
  });
}

bool fits_one_shot_norm(const Tensor& part, const Tensor& residual) {
  const int64_t dim = part.shape.last();
  return part.dtype != DType::F32 && dim % 4 == 0 && dim <= 4 * kMostNormThreads * kMostNormWords &&
         part.n_elements() / dim * row_words(dim) <= kOneShotWords && aligned16(part) &&
         aligned16(residual);
}

void one_shot_add_norm(cudaStream_t stream, const Ranks& ranks, Tensor residual, Tensor part,
                       Tensor normed, Tensor weight, float eps) {
  const int64_t dim = part.shape.last(), n_rows = part.n_elements() / dim;
  MINFER_CHECK(fits_one_shot_norm(part, residual) && residual.dtype == DType::F32 &&
                   residual.shape == part.shape && normed.shape == part.shape &&
                   normed.dtype == part.dtype && weight.dtype == part.dtype &&
                   weight.shape == Shape({dim}) && aligned16(normed) && aligned16(weight),
               "one_shot_add_norm: part ", part.dtype, " ", part.shape, ", residual ",
               residual.dtype, " ", residual.shape, ", normed ", normed.dtype, " ", normed.shape,
               ", weight ", weight.dtype, " ", weight.shape);
  if (n_rows == 0) return;
  const int64_t n_words = dim / 4;
  visit_half(part.dtype, [&]<typename T>() {
    const auto run = [&]<int kWords>() {
      const int64_t n_threads = align_up(ceil_div(n_words, int64_t{kWords}), int64_t{32});
      launch(one_shot_norm_kernel<T, kWords>, dim3(unsigned(n_rows)), dim3(unsigned(n_threads)), 0,
             stream, ranks, data_of<float>(residual), data_of<T>(part), data_of<T>(normed),
             data_of<T>(weight), int(dim), eps);
    };
    if (n_words <= kMostNormThreads) return run.template operator()<1>();
    if (n_words <= 2 * kMostNormThreads) return run.template operator()<2>();
    run.template operator()<kMostNormWords>();
  });
}

}  // namespace minfer::cuda
