#include "kernels/cuda/comm/wait.cuh"
#include "kernels/cuda/launch.h"

namespace minfer::cuda {
namespace {

constexpr int kSlotWords = kSlotBytes / 16;

// What a block does with the words of one piece in one turn.
struct Turn {
  bool receives, reduces;  // from the rank before; reduces: and adds its own
  bool sends;              // on to the next one
  bool is_whole;           // it has the sum of all ranks then
};

// n words: from `in` and `local` to `out` and `local`, or to the residual stream.
template <typename T>
__device__ void do_turn(const Turn& turn, const Vec<T>* in, Vec<T>* out, Vec<T>* local,
                        float* residual, int n) {
  for (int first = int(threadIdx.x); first < n; first += kWorkers * kWordsAtOnce) {
    const auto word = [&](int k) { return int64_t{first} + k * kWorkers; };
    Vec<T> v[kWordsAtOnce], w[kWordsAtOnce];
#pragma unroll
    for (int k = 0; k < kWordsAtOnce; ++k) {
      if (word(k) >= n) continue;
      if (turn.receives) v[k] = load_shared_word(in + word(k));
      if (turn.reduces) w[k] = local[word(k)];
    }
#pragma unroll
    for (int k = 0; k < kWordsAtOnce; ++k) {
      if (word(k) >= n) continue;
      if (!turn.receives) {
        v[k] = w[k];
      } else if (turn.reduces) {
        v[k] = sum_of(v[k], w[k]);
      }
      if (turn.sends) out[word(k)] = v[k];
      if (turn.is_whole && !residual) local[word(k)] = v[k];
    }
    if (turn.is_whole && residual) add_words(residual, v, word, n);
  }
}

// The ring of kernels/comm/ring.h, each channel a block by itself.
//
//   x         [n_words] words of 16 bytes of T, in place
//   residual  F32, as many elements, or null: residual += the sum instead
//   launch    a block has a range of each chunk, which travels in pieces of at most a slot. Of
//             2 n - 1 turns for each piece, the first only sends, the last only receives; a turn
//             that does both sends on what it has received. In a step of the loop, piece `step`
//             has its turn 0, the one before it turn 1, and so on: a piece travels while the block
//             works on the others
//   requires  slots and counters are left by the kernel before as it needs them: they go on
//             counting. What a turn receives was sent in the step before, and the slot that it
//             sends to is read by an earlier turn of the same step at the latest, so no rank waits
//             for itself
//   maths     f32 sums in the order of the ring, rounded to T at each turn: the same bits on all
//   moves     2 (n_ranks - 1) / n_ranks of x to the next rank
template <typename T>
__global__ void __launch_bounds__(kChannelThreads)
    ring_kernel(const __grid_constant__ Ranks r, Vec<T>* x, float* residual, int64_t n_words) {
  if (!r.shares_card) ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  const int n = r.n_ranks, next = rank_after(r, r.rank, 1), before = rank_after(r, r.rank, n - 1);
  const int channel = int(blockIdx.x), n_slots = ring_slots(n), lane = int(threadIdx.x) % 32;
  const bool is_worker = threadIdx.x < kWorkers;
  RingChannel* const own = r.mailbox[r.rank].channels + channel;
  uint64_t* const next_arrived = &r.mailbox[next].channels[channel].arrived;
  uint64_t* const before_freed = &r.mailbox[before].channels[channel].freed;
  const size_t inbox = size_t(channel) * n_slots * kSlotWords;
  const auto* const in_slots = reinterpret_cast<const Vec<T>*>(r.mailbox[r.rank].inbox) + inbox;
  auto* const out_slots = reinterpret_cast<Vec<T>*>(r.mailbox[next].inbox) + inbox;
  uint64_t sent = own->sent, received = own->received;
  int in_slot = int(received % n_slots), out_slot = int(sent % n_slots);

  const auto [begin, end] = channel_range(n_words, n);
  // Four pieces if they are not too short: the first and the last steps have fewer turns.
  constexpr int64_t kShortest = kWorkers * kWordsAtOnce;
  const int64_t piece_words = min(int64_t{kSlotWords}, max(kShortest, (end - begin + 3) / 4));
  const int64_t n_pieces = (end - begin + piece_words - 1) / piece_words;
  const int n_turns = 2 * n - 1;
  for (int64_t step = 0; step < n_pieces + n_turns - 1; ++step) {
    for (int i = 0; i < n_turns; ++i) {
      const int64_t piece = step - i, at = begin + piece * piece_words;
      if (piece < 0 || piece >= n_pieces) continue;
      const Turn turn = {
          .receives = i > 0, .reduces = i < n, .sends = i < n_turns - 1, .is_whole = i >= n - 1};
      if (is_worker) {
        if (lane == 0 && turn.receives) wait_for_count(r, &own->arrived, received + 1, before);
        if (lane == 0 && turn.sends && sent >= uint64_t(n_slots)) {
          wait_for_count(r, &own->freed, sent + 1 - n_slots, next);
        }
        __syncwarp();
        const int chunk = turn.receives ? ring_step(n, r.rank, i - 1).receive : r.rank;
        const int64_t first = chunk_begin(n_words, n, chunk);
        const int64_t length = chunk_begin(n_words, n, chunk + 1) - first;
        const int64_t n_here = min(min(piece_words, end - at), length - at);
        do_turn<T>(turn, in_slots + in_slot * kSlotWords, out_slots + out_slot * kSlotWords,
                   x + first + at, residual ? residual + (first + at) * Vec<T>::kSize : nullptr,
                   int(n_here));
      }
      __syncthreads();  // orders the block's accesses before the fence
      if (!is_worker && lane == 0) {
        __threadfence_system();
        if (turn.sends) store_relaxed(next_arrived, sent + 1);
        if (turn.receives) store_relaxed(before_freed, received + 1);
      }
      if (turn.receives) {
        ++received;
        in_slot = in_slot + 1 < n_slots ? in_slot + 1 : 0;
      }
      if (turn.sends) {
        ++sent;
        out_slot = out_slot + 1 < n_slots ? out_slot + 1 : 0;
      }
    }
  }
  if (threadIdx.x == 0) {  // all have read them: a barrier of the block stands between
    own->sent = sent;
    own->received = received;
  }
}

}  // namespace

void ring_all_reduce(cudaStream_t stream, const Ranks& ranks, Tensor x, Tensor residual,
                     int n_channels) {
  MINFER_CHECK(are_whole_words(x, residual), "ring all-reduce of ", x.dtype, " ", x.shape);
  const int64_t n_words = x.n_bytes() / 16;
  if (n_words == 0) return;
  visit_device_float(x.dtype, [&]<typename T>() {
    launch(ring_kernel<T>, dim3(channels_for(n_words, ranks.n_ranks, n_channels)),
           dim3(kChannelThreads), 0, stream, ranks, data_of<Vec<T>>(x), data_of<float>(residual),
           n_words);
  });
}

}  // namespace minfer::cuda
