#pragma once

#include <climits>

#include "kernels/cuda/checkable.h"
#include "kernels/cuda/decode/persistent/step_slice.cuh"
#include "kernels/cuda/ptx.cuh"

// The ring of weights: producer warps fill it in the order in which the consumer warps read the
// weights and the cache in a step. They wait for free slots and for copies in flight, but never for
// activations, so that memory stays busy while blocks exchange activations.
namespace minfer::cuda {

struct StepRing {
  uint8_t* slots;
  uint32_t full, empty;  // shared addresses of [n_slots] mbarriers
  int n_slots, slot_bytes;
  int* most_copies;  // stages in flight, up to n_slots; producers read it while it changes
  int copies_near;   // StepParams
};
constexpr int kArrivalsOfEmpty = kStepWarps * (kIsCheckable ? 32 : 1);

__device__ inline void allow_copies(int* most_copies, int n) {
  if constexpr (kIsCheckable) {
    atomicExch_block(most_copies, n);
  } else {
    *static_cast<volatile int*>(most_copies) = n;
  }
}
// The same where the condition holds, without a branch.
__device__ inline void allow_copies_if(bool condition, int* most_copies, int n) {
  if constexpr (kIsCheckable) {
    if (condition) allow_copies(most_copies, n);
  } else {
    ptx::store_shared_if(condition, ptx::shared_address(most_copies), n);
  }
}
__device__ inline int copies_allowed(int* most_copies) {
  return kIsCheckable ? atomicAdd_block(most_copies, 0) : *static_cast<volatile int*>(most_copies);
}

// A stream is the rows that a stage of float weights has, or 16 rows of codes. Streams come in
// groups of 4, 2 or 1: the ring holds one stage of each stream of a group, then the next stage of
// each, so that the staged input is read once for the whole group. A block's K split of a tile pair
// is a group of its own, in front of the others.

// The i-th stage that a block reads in a linear phase, where its own tiles have n_streams streams
// and are multiplied `at_once` stages at a time, first all of them by the first columns.
// Streams -2 and -1 are the gate and the up tile of its K split.
struct StreamStage {
  int stream, stage;
};
template <bool kInParts>
__device__ inline StreamStage stream_stage(const StepGemv& p, int n_streams, int at_once, int i) {
  const StepStages& k_split = p.k_split.stages;
  const int of_k_split = 2 * (k_split.end - k_split.begin);
  if (i < of_k_split) return {i % 2 - 2, k_split.begin + i / 2};
  i -= of_k_split;
  int first = 0, n_stages = p.n_stages;
  if constexpr (kInParts) {
    const int part = i / (n_streams * at_once);
    i -= part * (n_streams * at_once);
    first = part * at_once;
    n_stages = min(at_once, n_stages - first);
  }
  const int in_fours = n_streams & ~3, in_pair = n_streams & 2, of_four = 4 * n_stages;
  if (i < in_fours * n_stages) {
    const int group = i / of_four, in_group = i - group * of_four;
    return {4 * group + in_group % 4, first + in_group / 4};
  }
  i -= in_fours * n_stages;
  if (i < in_pair * n_stages) return {in_fours + i % 2, first + i / 2};
  return {in_fours + in_pair, first + i - in_pair * n_stages};
}

// The stages that a block reads in a linear phase, of n_streams streams beside its K split.
__device__ inline int n_stages_of(const StepGemv& p, int n_streams) {
  return 2 * (p.k_split.stages.end - p.k_split.stages.begin) + n_streams * p.n_stages;
}

// A tile of a linear phase: the index of its matrix in the phase, and its index in that matrix.
struct StepTile {
  int matrix, row_tile;
};
__device__ inline StepTile step_tile(const StepGemv& p, int phase, int tile, int half_of_pair) {
  if (phase == kGateUp) return {half_of_pair, tile};
  const int part = (tile >= p.ends[0]) + (tile >= p.ends[1]);
  return {part, tile - (part == 0 ? 0 : part == 1 ? p.ends[0] : p.ends[1])};
}

constexpr unsigned kRingSleep = 40;  // ns

// The source of a copy into a slot: weights, or rows of the cache, and the scales that follow them.
struct StagePart {
  const uint8_t *from, *scales;
  int n_bytes, n_scale_bytes;
};
struct StageCopy {
  // second: rows of the cache that lie in the next page, columns of the next expert, or, as scales
  // without codes, the minimums of the first; or nothing.
  StagePart first, second;
  int scales_at, second_scales_at;  // offsets of their scales in the slot
};

// While the ring is full, a producer brings its next kAheadStages stages to L2, one piece in
// kAheadClocks: memory would be idle otherwise, while blocks exchange vectors. Not faster, since
// what comes from memory delays the exchange: docs/lab/decode-2026-11.md.
constexpr int kAheadStages = 6, kAheadPieces = 4;
constexpr uint32_t kAheadClocks = 700;

// Brings a piece of a stage to L2, but no second part of it.
__device__ inline void bring_to_l2(const StagePart& part, int piece) {
  constexpr int kUnit = 16 * kAheadPieces;
  const int n_bytes = (part.n_bytes + kUnit - 1) / kUnit * 16;
  const int n_here = min(n_bytes, part.n_bytes - piece * n_bytes);
  if (n_here > 0) ptx::prefetch_l2(part.from + piece * n_bytes, n_here);
  if (piece == 0 && part.n_scale_bytes != 0) ptx::prefetch_l2(part.scales, part.n_scale_bytes);
}

// Waits for a slot whose barrier is `empty`, for the stage of lane k, and brings stages of the next
// of n_lanes lanes to L2, from next_piece on: that piece of all that they have. Returns the piece
// behind the last one that it brought. All lanes call it, each with a stage of its own.
__device__ inline int await_slot(uint32_t empty, int parity, int k, int n_lanes, int next_piece,
                                 StagePart part) {
  const int lane = int(threadIdx.x) % 32;
  next_piece = max(next_piece, (k + 1) * kAheadPieces);
  const int end_piece = min(n_lanes, k + 1 + kAheadStages) * kAheadPieces;
  // It sleeps between tries, since polling without a pause takes issue slots from the consumers.
  const auto is_free_soon = [&] {
    const uint32_t since = ptx::read_clock();
    while (ptx::read_clock() - since < kAheadClocks) {
      __nanosleep(kRingSleep);
      if (ptx::mbarrier_is_complete(empty, parity)) return true;
    }
    return false;
  };
  while (__any_sync(~0u, lane == k && !is_free_soon())) {
    if (next_piece >= end_piece) continue;
    if (lane == next_piece / kAheadPieces) bring_to_l2(part, next_piece % kAheadPieces);
    ++next_piece;
  }
  return next_piece;
}

// Warp `producer` of kStepProducers fills every kStepProducers-th stage. Its lanes compute the
// sources of up to 32 stages in parallel; then each lane starts the copies of its own stage. When
// one lane did all of this, a stage of F16 took 1900 clocks, longer than memory takes for the
// stages of four warps.
class RingProducer {
 public:
  __device__ RingProducer(const StepRing& ring, int producer)
      : ring_(ring), policy_(ptx::evict_first_policy()), producer_(producer), slot_(producer) {}

  // Fills the next n stages of the ring, the i-th from copy_of(i). All lanes call it, and copy_of.
  // kGoesAhead: while the ring is full, it brings those behind to L2. The lanes meet once for each
  // stage and no more, and none asks twice for a slot that is free: both together cost 2 % of a
  // step.
  template <bool kGoesAhead, typename F>
  __device__ void put(int n, F copy_of) {
    const int first = int((unsigned(producer_) - n_put_) % kStepProducers);
    n_put_ += unsigned(n);
    for (int i = first; i < n; i += 32 * kStepProducers) {
      const int n_here = min(32, (n - i + kStepProducers - 1) / kStepProducers);
      const StageCopy copy = copy_of(min(i + kStepProducers * lane(), n - 1));
      const int own = slot_ + kStepProducers * lane(), rounds = own / ring_.n_slots;
      const int slot = own - rounds * ring_.n_slots, parity = parity_ ^ (rounds & 1);
      int next_piece = 0;
      for (int k = 0; k < n_here; ++k) {
        if constexpr (kGoesAhead) {
          if (__any_sync(~0u, lane() == k && !is_free(slot, parity))) {
            next_piece =
                await_slot(ring_.empty + 8 * slot, parity, k, n_here, next_piece, copy.first);
          }
        } else {
          __syncwarp();
          while (lane() == k && !is_free(slot, parity)) __nanosleep(kRingSleep);
        }
        if (lane() == k) put_one(copy, slot, parity);
      }
      slot_ += kStepProducers * n_here;
      parity_ ^= slot_ / ring_.n_slots & 1;
      slot_ %= ring_.n_slots;
    }
  }

 private:
  static __device__ int lane() { return int(threadIdx.x) % 32; }

  // `parity` is that of the phase of `empty` which ended when the slot was last released.
  __device__ bool is_free(int slot, int parity) const {
    return ptx::mbarrier_is_complete(ring_.empty + 8 * slot, parity);
  }
  // Into a free slot.
  __device__ void put_one(const StageCopy& copy, int slot, int parity) const {
    uint8_t* const to = ring_.slots + slot * ring_.slot_bytes;
    // To limit the copies in flight, it waits until the copy copies_allowed() stages earlier has
    // landed: then that slot is full, or was full and has been released. The second test is needed
    // because another producer may have refilled the slot, and `full` then looks as if the copy had
    // not landed. The slot cannot have been released twice, since consumers read the stage that is
    // copied here first.
    const int before = slot - copies_allowed(ring_.most_copies);
    const int its_slot = before < 0 ? before + ring_.n_slots : before;
    const int its_parity = before < 0 ? parity : parity ^ 1;
    while (!ptx::mbarrier_is_complete(ring_.full + 8 * its_slot, its_parity) &&
           !ptx::mbarrier_is_complete(ring_.empty + 8 * its_slot, its_parity)) {
      __nanosleep(kRingSleep);
    }
    auto* const barrier = static_cast<uint64_t*>(__cvta_shared_to_generic(ring_.full + 8 * slot));
    const StagePart &first = copy.first, &second = copy.second;
    ptx::mbarrier_expect(
        barrier, first.n_bytes + first.n_scale_bytes + second.n_bytes + second.n_scale_bytes);
    put_part(to, to + copy.scales_at, first, barrier);
    if (second.n_bytes + second.n_scale_bytes != 0) {
      put_part(to + first.n_bytes, to + copy.second_scales_at, second, barrier);
    }
  }
  __device__ void put_part(uint8_t* to, uint8_t* scales, const StagePart& part,
                           uint64_t* barrier) const {
    if (part.n_bytes != 0) ptx::bulk_copy(to, part.from, part.n_bytes, barrier, policy_);
    if (part.n_scale_bytes != 0) {
      ptx::bulk_copy(scales, part.scales, part.n_scale_bytes, barrier, policy_);
    }
  }

  const StepRing& ring_;
  const uint64_t policy_;
  const int producer_;
  int slot_, parity_ = 1;  // of the next stage of this warp
  unsigned n_put_ = 0;     // stages put by all producers
};

// The copy of a stage of the chosen experts, of a row of weights in a tile. A stage of down may
// begin with the last columns of one expert and end with the first ones of the next.
template <typename I>
__device__ inline StageCopy expert_copy(const StepGemv& gemv, const StepExperts<I>& experts,
                                        int n_active, int phase, StepTile tile, int row_in_tile,
                                        int stage, int n_bytes) {
  const int row_shift = !are_codes(gemv.format) ? kFloatRowsLog : 0;
  const int scale_bytes = phase == kDown ? gemv.expert_scale_bytes : gemv.tile_scale_bytes;
  // Up to `most` and `most_scales` bytes, from these offsets on in the tile of one expert.
  const auto part_of = [&](int matrix, int slot, int from, int scales_from, int most,
                           int most_scales) {
    const StepMatrix& w = experts.matrices[matrix][slot];
    const int64_t row = (int64_t{tile.row_tile} << row_shift) + row_in_tile;
    return StagePart{w.weights + row * gemv.code_bytes + from,
                     w.scales + int64_t{tile.row_tile} * gemv.tile_scale_bytes + scales_from,
                     min(most, gemv.code_bytes - from),
                     min(most_scales, scale_bytes - scales_from)};
  };
  int from = stage * n_bytes, scales_from = stage * gemv.stage_scale_bytes, slot;
  if (phase == kGateUp) {
    slot = tile.row_tile / gemv.expert_pairs;
    tile.row_tile -= slot * gemv.expert_pairs;
    return {part_of(tile.matrix, slot, from, scales_from, n_bytes, gemv.stage_scale_bytes),
            {},
            n_bytes,
            n_bytes};
  }
  slot = from / gemv.code_bytes;
  from -= slot * gemv.code_bytes;
  scales_from -= slot * scale_bytes;
  const StagePart first = part_of(2, slot, from, scales_from, n_bytes, gemv.stage_scale_bytes);
  if (first.n_bytes == n_bytes || slot + 1 == n_active) return {first, {}, n_bytes, n_bytes};
  return {first,
          part_of(2, slot + 1, 0, 0, n_bytes - first.n_bytes,
                  gemv.stage_scale_bytes - first.n_scale_bytes),
          n_bytes, n_bytes + first.n_scale_bytes};
}

// Brings to L2 what the input of the next phase with a norm is multiplied by: the weights of norms,
// and the block's rows of the router. Lane i has the i-th pair of pointers of this layer and of the
// next one. A producer calls it: it would make the warp of a consumer late.
template <typename I>
__device__ inline void bring_vectors(const StepParams& p, int phase, const StepMatrix& of_this,
                                     const StepMatrix& of_next) {
  if (phase != kWo && phase != kDown) return;
  const int lane = int(threadIdx.x) % 32;
  if (lane == kNormPair || (!I::kIsPlain && lane == kPostNormPair)) {
    const uint8_t* const weight = phase == kWo ? of_this.scales : of_next.weights;
    if (I::kIsPlain || weight != nullptr) ptx::prefetch_l2(weight, 2 * p.dim & ~15);
  }
  if (I::kHasExperts && phase == kWo && lane == kRouterPair) {
    const auto [first, n_rows] = p.router.rows_of(int(blockIdx.x), p.n_blocks());
    const uint8_t* const rows = of_this.weights + int64_t{2} * p.dim * first;
    if (n_rows != 0) ptx::prefetch_l2(rows, 2 * p.dim * n_rows & ~15);
  }
}

// Lane i: the i-th pair of pointers of a layer, or of the output.
__device__ inline StepMatrix pointers_of_lane(const StepParams& p, int layer) {
  const int lane = int(threadIdx.x) % 32;
  return lane < kLayerPairs && layer <= p.n_layers ? pointer_pair(p.layers[layer], lane)
                                                   : StepMatrix{};
}

// Fills the ring through the whole step, as warp `producer`. first_pointers: pointers_of_lane() of
// layer 0.
template <typename I>
__device__ inline void fill_ring(const StepParams& p, const StepGemv (*gemvs)[kStepPhases],
                                 const StepExperts<I>& experts, const StepRing& ring, int pos,
                                 const StepMatrix& first_pointers, int producer) {
  RingProducer ring_producer(ring, producer);
  StepAttentionSlice slice = attention_slice(p.attention, pos, 0);
  CacheStages cache = cache_stages(p.attention, slice);
  const int kv_head = slice.kv_head;
  StepMatrix pointers{}, next = first_pointers;  // of this layer and of the next one
  [[maybe_unused]] int chosen_parity = 0;
  const auto pointer = [&](const uint8_t* of_lane, int i) {
    return reinterpret_cast<const uint8_t*>(
        __shfl_sync(~0u, reinterpret_cast<unsigned long long>(of_lane), i));
  };
  for (int step = 0; step <= 4 * p.n_layers; ++step) {
    const int layer = step / 4, phase = layer == p.n_layers ? int(kHead) : step % 4;
    if (step % 4 == 0) {
      pointers = next;
      next = pointers_of_lane(p, layer + 1);
    }
    if (!I::kIsPlain && phase == kQkv) {
      const int window = p.attention.kinds[p.attention.kind(layer)].window;
      slice = attention_slice(p.attention, pos, window);
      cache = cache_stages(p.attention, slice);
    }
    if (phase == kWo && cache.n_stages != 0) {
      ring_producer.put<false>(2 * cache.n_stages, [&](int i) {
        const int first = cache.begin + i / 2 * cache.stage_rows, n_rows = cache.rows_of(i / 2);
        const uint8_t* const rows[] = {pointer(pointers.weights, kCachePair),
                                       pointer(pointers.scales, kCachePair)};
        const uint8_t* const scales[] = {pointer(pointers.weights, kCachePair + 1),
                                         pointer(pointers.scales, kCachePair + 1)};
        // n rows from first_pos on, all in one page.
        const auto part_of = [&](int first_pos, int n) {
          if (n <= 0) return StagePart{};
          const int64_t row = cache_row(p, kv_head, first_pos);
          return StagePart{(i % 2 == 0 ? rows[0] : rows[1]) + row * cache.row_bytes,
                           (i % 2 == 0 ? scales[0] : scales[1]) + (row & ~int64_t{3}) * 4,
                           n * cache.row_bytes,
                           p.attention.is_u8 ? cache.scale_bytes(first_pos, n) : 0};
        };
        const int n_of_page = min(n_rows, int{kPagePositions} - first % int{kPagePositions});
        const StagePart in_page = part_of(first, n_of_page);
        return StageCopy{in_page, part_of(first + n_of_page, n_rows - n_of_page), kStageBytes,
                         kStageBytes + in_page.n_scale_bytes};
      });
    }
    if (producer == 0) bring_vectors<I>(p, phase, pointers, next);
    const StepGemv* const phases = gemvs[I::kHasMixes ? p.mix_of_layer[layer] : 0];
    const StepGemv& gemv = phases[phase];
    const bool is_of_experts =
        I::kHasExperts && p.router.exists() && (phase == kGateUp || phase == kDown);
    if (is_of_experts && phase == kGateUp && reads_experts(phases)) {
      const uint32_t chosen = ptx::shared_address(const_cast<uint64_t*>(&experts.arrivals));
      while (!ptx::mbarrier_is_complete(chosen, chosen_parity)) __nanosleep(kRingSleep);
      chosen_parity ^= 1;
    }
    const int half_shift = phase == kGateUp ? 1 : 0;
    const bool is_float = I::kIsFloat || (!I::kAreCodes && !are_codes(gemv.format));
    const int stage_rows_log = I::kIsFloat ? gemv.stage_rows_log : 0;
    const int row_shift = is_float ? kFloatRowsLog - stage_rows_log : 0;
    const int n_streams = gemv.count << (half_shift + row_shift);
    // Past the last rows of float weights, these are read again; their sums are not stored.
    const int last = is_float ? (gemv.out_dim - 1) >> stage_rows_log : INT_MAX;
    const int at_once = is_in_parts(I::kTokens, phase) ? part_stages(gemv.format) : gemv.n_stages;
    ring_producer.put<true>(n_stages_of(gemv, n_streams), [&](int i) {
      const auto [stream, stage] = stream_stage<(I::kTokens > 1)>(gemv, n_streams, at_once, i);
      const int tile_index = stream >> row_shift;
      const int its_tile = stream < 0 ? gemv.k_split.tile : gemv.begin + (tile_index >> half_shift);
      const StepTile tile = step_tile(gemv, phase, its_tile, tile_index & ((1 << half_shift) - 1));
      const int matrix = first_matrix(phase) + tile.matrix;
      const int row_in_tile = stream & ((1 << row_shift) - 1);
      const int row = min((tile.row_tile << row_shift) + row_in_tile, last);
      const int n_bytes = I::kHasMixes ? stage_bytes(gemv.format) : kStageBytes;
      int n_in_stream = gemv.code_bytes;
      if (stage_rows_log != 0) {
        const int n_left = gemv.out_dim - (row << stage_rows_log);
        n_in_stream = min(n_in_stream, 2 * gemv.in_dim * min(n_left, kFloatRows));
      }
      if constexpr (I::kHasExperts) {
        if (is_of_experts) {
          return expert_copy(gemv, experts, p.router.choice.n_active, phase, tile, row_in_tile,
                             stage, n_bytes);
        }
      }
      const int from = stage * n_bytes, scales_from = stage * gemv.stage_scale_bytes;
      const int64_t scales_of_tile = int64_t{tile.row_tile} * gemv.tile_scale_bytes + scales_from;
      const StagePart part{
          pointer(pointers.weights, matrix) + int64_t{row} * gemv.code_bytes + from,
          pointer(pointers.scales, matrix) + scales_of_tile, min(n_bytes, n_in_stream - from),
          min(gemv.stage_scale_bytes, gemv.tile_scale_bytes - scales_from)};
      StagePart mins{};
      if constexpr (I::kIsMixed) {
        if (gemv.has_mins()) {
          const uint8_t* const even = pointer(pointers.weights, kMinsPair + matrix / 2);
          const uint8_t* const odd = pointer(pointers.scales, kMinsPair + matrix / 2);
          mins = {nullptr, (matrix % 2 == 0 ? even : odd) + kMinsOverScales * scales_of_tile, 0,
                  kMinsOverScales * part.n_scale_bytes};
        }
      }
      return StageCopy{part, mins, n_bytes, n_bytes + gemv.stage_scale_bytes};
    });
  }
}

}  // namespace minfer::cuda
