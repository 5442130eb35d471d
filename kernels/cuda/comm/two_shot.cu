#include "kernels/cuda/comm/wait.cuh"
#include "kernels/cuda/launch.h"

namespace minfer::cuda {
namespace {

constexpr int kTileWords = kWorkers * kWordsAtOnce;

// Until the block of every other rank has done `steps`. All lanes of a warp call it.
__device__ inline void wait_for_all(const Ranks& r, const TwoShotBlock* own, uint64_t steps) {
  const int lane = int(threadIdx.x) % 32;
  if (lane < r.n_ranks && lane != r.rank) {
    wait_for_count(r, own->of_rank + lane, steps, lane);
  }
  __syncwarp();
}
// Tells the block of every other rank. The lanes of one warp call it.
__device__ inline void tell_all(const Ranks& r, uint64_t steps) {
  const int lane = int(threadIdx.x) % 32;
  if (lane < r.n_ranks && lane != r.rank) {
    store_release(r.mailbox[lane].blocks[blockIdx.x].of_rank + r.rank, steps);
  }
}

// The sums of a worker's words, word_of(k) below `end`, of chunks that begin at word `first` of xs.
template <typename T, typename F>
__device__ void sum_words(Vec<T> (&sums)[kWordsAtOnce], const Ranks& r, const OfRanks& xs,
                          int64_t first, F&& word_of, int64_t end) {
  const auto load = [&](int rank, int k) {
    return load_shared_word(static_cast<const Vec<T>*>(xs.of_rank[rank]) + first + word_of(k));
  };
  if (r.n_ranks == 2) {
    Vec<T> others[kWordsAtOnce];
#pragma unroll
    for (int k = 0; k < kWordsAtOnce; ++k) {
      if (word_of(k) >= end) continue;
      sums[k] = load(0, k);
      others[k] = load(1, k);
    }
#pragma unroll
    for (int k = 0; k < kWordsAtOnce; ++k) sums[k] = sum_of(sums[k], others[k]);
    return;
  }
  // Two words at a time: the f32 sums of more would spill.
#pragma unroll
  for (int half = 0; half < kWordsAtOnce; half += 2) {
    float sum[2][Vec<T>::kSize] = {};
#pragma unroll 2
    for (int rank = 0; rank < r.n_ranks; ++rank) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        if (word_of(half + k) < end) add_to(sum[k], load(rank, half + k));
      }
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) sums[half + k] = rounded<T>(sum[k]);
  }
}

// Sums words [at, end) of the rank's own chunk, which begins at word `first` of x, and writes them
// to all ranks.
template <typename T>
__device__ void reduce_tile(const Ranks& r, const OfRanks& xs, float* residual, int64_t first,
                            int64_t at, int64_t end) {
  const auto word = [&](int k) { return at + k * kWorkers + int(threadIdx.x); };
  Vec<T> sums[kWordsAtOnce];
  sum_words<T>(sums, r, xs, first, word, end);
  // The others first; the own tensor does not need the sum if the residual stream gets it.
  for (int d = 1; d < r.n_ranks + (residual == nullptr); ++d) {
    auto* const x = static_cast<Vec<T>*>(xs.of_rank[rank_after(r, r.rank, d)]) + first;
#pragma unroll
    for (int k = 0; k < kWordsAtOnce; ++k) {
      if (word(k) < end) x[word(k)] = sums[k];
    }
  }
  if (residual) add_words(residual + first * Vec<T>::kSize, sums, word, end);
}

// residual += the sums that another rank has written to words [at, end) of its chunk of x.
template <typename T>
__device__ void add_tile(float* residual, const Vec<T>* x, int64_t first, int64_t at, int64_t end) {
  const auto word = [&](int k) { return at + k * kWorkers + int(threadIdx.x); };
  Vec<T> v[kWordsAtOnce];
#pragma unroll
  for (int k = 0; k < kWordsAtOnce; ++k) {
    if (word(k) < end) v[k] = load_shared_word(x + first + word(k));
  }
  add_words(residual + first * Vec<T>::kSize, v, word, end);
}

// Each rank sums its chunk of x, reading those of the others, and writes the sums to all.
//
//   xs        [n_words] words of 16 bytes of T of each rank, in place
//   residual  F32, as many elements, or null: residual += the rounded sum
//   launch    a block has a range of each chunk, and goes through it in tiles. Its steps: it has
//             begun, then a step for each tile that it has summed and written to all. It adds a
//             tile of the other ranks to the residual stream after its own next one
//   requires  a rank's steps of a block are counted through all launches, by all alike: chunks
//             that are shorter by a word have as many tiles. A rank ends when all others have
//             summed everything, so none reads or writes its x any more
//   maths     f32 sums in the order of the ranks, rounded once to T: the same bits on all
//   moves     (n_ranks - 1) / n_ranks of x from the other ranks, and as much to them
template <typename T>
__global__ void __launch_bounds__(kChannelThreads)
    two_shot_kernel(const __grid_constant__ Ranks r, const __grid_constant__ OfRanks xs,
                    float* residual, int64_t n_words) {
  if (!r.shares_card) ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  TwoShotBlock* const own = r.mailbox[r.rank].blocks + blockIdx.x;
  const uint64_t begun = own->steps + 1;
  const bool is_worker = threadIdx.x < kWorkers;
  __syncthreads();  // all have read the steps
  if (!is_worker) tell_all(r, begun);

  const auto chunk_first = [&](int rank) { return chunk_begin(n_words, r.n_ranks, rank); };
  const auto [begin, end] = channel_range(n_words, r.n_ranks);
  const int n_tiles = int((end - begin + kTileWords - 1) / kTileWords);
  const auto tile_begin = [&](int tile) { return begin + int64_t{tile} * kTileWords; };
  const auto tile_end = [&](int tile, int rank) {
    return min(min(tile_begin(tile + 1), end), chunk_first(rank + 1) - chunk_first(rank));
  };
  const auto add_others = [&](int tile) {
    for (int d = 1; d < r.n_ranks; ++d) {
      const int rank = rank_after(r, r.rank, d);
      add_tile(residual, static_cast<const Vec<T>*>(xs.of_rank[r.rank]), chunk_first(rank),
               tile_begin(tile), tile_end(tile, rank));
    }
  };
  if (is_worker) wait_for_all(r, own, begun);
  for (int tile = 0; tile < n_tiles; ++tile) {
    if (is_worker) {
      reduce_tile<T>(r, xs, residual, chunk_first(r.rank), tile_begin(tile),
                     tile_end(tile, r.rank));
    }
    __syncthreads();  // orders the block's stores before what the others are told
    if (!is_worker) {
      tell_all(r, begun + 1 + tile);
    } else if (residual != nullptr && tile > 0) {
      wait_for_all(r, own, begun + tile);
      add_others(tile - 1);
    }
  }
  if (is_worker) wait_for_all(r, own, begun + n_tiles);
  if (is_worker && residual != nullptr) add_others(n_tiles - 1);
  if (threadIdx.x == 0) own->steps = begun + n_tiles;
}

}  // namespace

bool are_whole_words(const Tensor& x, const Tensor& residual) {
  return x.n_bytes() % 16 == 0 && aligned16(x) && aligned16(residual);
}

void two_shot_all_reduce(cudaStream_t stream, const Ranks& ranks, const OfRanks& xs, Tensor x,
                         Tensor residual, int n_channels) {
  MINFER_CHECK(are_whole_words(x, residual), "two-shot all-reduce of ", x.dtype, " ", x.shape);
  const int64_t n_words = x.n_bytes() / 16;
  if (n_words == 0) return;
  visit_device_float(x.dtype, [&]<typename T>() {
    launch(two_shot_kernel<T>, dim3(channels_for(n_words, ranks.n_ranks, n_channels)),
           dim3(kChannelThreads), 0, stream, ranks, xs, data_of<float>(residual), n_words);
  });
}

}  // namespace minfer::cuda
