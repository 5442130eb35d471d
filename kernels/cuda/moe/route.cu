#include "kernels/cuda/gemv/choose.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/moe/moe.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/ptx.cuh"

namespace minfer::cuda {
namespace {

constexpr int kRowsOfBlock = 4;  // a warp each
constexpr int kSortThreads = 512, kSortWarps = kSortThreads / 32;

// chosen and weights [n_rows, n_active] of logits [n_rows, n_experts]
//
//   launch    a warp per row
//   maths     f32: the softmax as a sum over lanes, then over a tree of them
__global__ void __launch_bounds__(32 * kRowsOfBlock)
    choose_kernel(int32_t* chosen, float* weights, const float* logits, int n_rows,
                  const __grid_constant__ Router router) {
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  const int row = int(blockIdx.x) * kRowsOfBlock + int(threadIdx.x) / 32;
  if (row >= n_rows) return;
  const Choice choice = choose_experts(logits + int64_t{row} * router.n_experts, router);
  const int lane = int(threadIdx.x) % 32;
  if (lane >= router.n_active) return;
  chosen[int64_t{row} * router.n_active + lane] = choice.expert;
  weights[int64_t{row} * router.n_active + lane] = choice.weight;
}

constexpr int kSortPairs = 8;  // of a thread, one after the other

struct SortShared {
  int of_warp[2][kSortWarps];
};

// The experts of pairs first ... first + kSortPairs - 1; past the last pair, -1.
__device__ inline void load_chosen(int (&experts)[kSortPairs], const int32_t* chosen, int first,
                                   int n_pairs) {
  if (first + kSortPairs <= n_pairs) {
#pragma unroll
    for (int i = 0; i < kSortPairs; i += 4) {
      const int4 four = *reinterpret_cast<const int4*>(chosen + first + i);
      experts[i] = four.x;
      experts[i + 1] = four.y;
      experts[i + 2] = four.z;
      experts[i + 3] = four.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kSortPairs; ++i) experts[i] = first + i < n_pairs ? chosen[first + i] : -1;
  }
}

// Sum over the threads of a block; all get it.
__device__ inline int block_sum(int value, int* of_warp) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  int sum = 0;
  for (int warp = 0; warp < kSortWarps; ++warp) sum += of_warp[warp];
  return sum;
}

// A stable counting sort of the pairs by expert: begins, pairs and places of a Routing.
//
//   launch    a block per expert. It counts the pairs of the experts below its own, then gives its
//             own pairs places in their order: nothing is passed between blocks, and nothing
//             depends on which thread is first
//   moves     twice n_pairs numbers per expert, from L2
__global__ void __launch_bounds__(kSortThreads)
    sort_kernel(int32_t* begins, int32_t* pairs, int32_t* places, const int32_t* chosen,
                int n_pairs, int n_experts) {
  constexpr int kPairsOfBlock = kSortThreads * kSortPairs;  // in a round
  auto& shared = ptx::static_shared<SortShared>();
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  const int expert = int(blockIdx.x), thread = int(threadIdx.x), lane = thread % 32;
  int experts[kSortPairs], n_before = 0;
  for (int first = thread * kSortPairs; first < n_pairs; first += kPairsOfBlock) {
    load_chosen(experts, chosen, first, n_pairs);
#pragma unroll
    for (int i = 0; i < kSortPairs; ++i) n_before += first + i < n_pairs && experts[i] < expert;
  }
  int next = block_sum(n_before, shared.of_warp[0]);
  if (thread == 0) begins[expert] = next;
  if (thread == 0 && expert == n_experts - 1) begins[n_experts] = n_pairs;
  for (int round = 0, turn = 1; round < n_pairs; round += kPairsOfBlock, turn ^= 1) {
    const int first = round + thread * kSortPairs;
    load_chosen(experts, chosen, first, n_pairs);
    int n_own = 0;
#pragma unroll
    for (int i = 0; i < kSortPairs; ++i) n_own += experts[i] == expert;
    int up_to = n_own;  // of the lanes up to this one
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int other = __shfl_sync(kAllLanes, up_to, lane >= distance ? lane - distance : lane);
      if (lane >= distance) up_to += other;
    }
    if (lane == 31) shared.of_warp[turn][thread / 32] = up_to;
    __syncthreads();  // no thread reads the other half after this
    int place = next + up_to - n_own;
    for (int warp = 0; warp < kSortWarps; ++warp) {
      const int n = shared.of_warp[turn][warp];
      if (warp < thread / 32) place += n;
      next += n;
    }
#pragma unroll
    for (int i = 0; i < kSortPairs; ++i) {
      if (experts[i] != expert) continue;
      pairs[place] = first + i;
      places[first + i] = place++;
    }
  }
}

}  // namespace

void route(cudaStream_t stream, const RouteArgs& a) {
  const Routing& r = a.out;
  const auto fits = [&](const Tensor& x) {
    return !x || (x.dtype == DType::F32 && x.shape == Shape{r.n_experts});
  };
  MINFER_CHECK(a.logits.dtype == DType::F32 && a.logits.shape == Shape({r.n_rows, r.n_experts}) &&
                   fits(a.bias) && fits(a.correction),
               "route: logits ", a.logits.shape, ", bias ", a.bias.shape, ", correction ",
               a.correction.shape, ", ", r.n_rows, " rows of ", r.n_experts, " experts");
  MINFER_CHECK(r.n_experts <= kMaxCardExperts && r.n_active >= 1 &&
                   r.n_active <= std::min(kMaxActiveExperts, r.n_experts),
               "route: ", r.n_active, " of ", r.n_experts, " experts");
  if (r.n_rows == 0) return;
  launch(choose_kernel, dim3(narrow<unsigned>(ceil_div(r.n_rows, kRowsOfBlock))),
         dim3(32 * kRowsOfBlock), 0, stream, r.chosen, r.weights, data_of<const float>(a.logits),
         narrow<int>(r.n_rows), router_of(a.spec, a.bias, a.correction));
  launch(sort_kernel, dim3(narrow<unsigned>(r.n_experts)), dim3(kSortThreads), 0, stream, r.begins,
         r.pairs, r.places, r.chosen, narrow<int>(r.n_pairs()), narrow<int>(r.n_experts));
}

}  // namespace minfer::cuda
