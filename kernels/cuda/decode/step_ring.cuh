#pragma once

#include <climits>

#include "kernels/cuda/decode/step_share.cuh"
#include "kernels/cuda/ptx.cuh"

// The ring of weights: some warps fill it along the way that the others take through all products
// of the step. They wait for slots alone, never for activations, so that the memory is busy while
// blocks exchange theirs.
namespace minfer::cuda {

struct StepRing {
  uint8_t* slots;
  uint32_t full, empty;  // shared addresses of [n_slots] mbarriers
  int n_slots, slot_bytes;
  const volatile int* most_copies;  // under way; 0: as many as there are slots
};

// Streams, each a row of floats or 16 rows of levels, go in groups of 4, 2 or 1 that take turns, a
// stage each: what is staged of the input is read once for all of them. A block's part of a pair of
// tiles is a group of its own, in front of the others.
__device__ inline int stream_group(int n_left) { return n_left >= 4 ? 4 : n_left >= 2 ? 2 : 1; }

// A tile of a product: its matrix, of those of the product, and which tile of that it is.
struct StepTile {
  int matrix, row_tile;
};
__device__ inline StepTile step_tile(const StepProduct& p, int phase, int tile, int half_of_pair) {
  if (phase == kGateUp) return {half_of_pair, tile};
  const int part = (tile >= p.ends[0]) + (tile >= p.ends[1]);
  return {part, tile - (part == 0 ? 0 : part == 1 ? p.ends[0] : p.ends[1])};
}

constexpr unsigned kRingSleep = 40;  // ns

// Warp `producer` of kStepProducers; it has every kStepProducers-th stage, which one lane asks for:
// a single one would be the slowest part of all.
__device__ inline void fill_ring(const StepParams& p, const StepProduct* products,
                                 const StepRing& ring, int producer) {
  static_assert(kStepProducers == 4, "what is left over in a group is found by masks");
  const int lane = int(threadIdx.x) % 32;
  const uint64_t policy = ptx::evict_first_policy();
  int slot = producer, parity = 1;
  // What `from` and `other` have into the next slot of this warp.
  const auto put = [&](const void* from, int n_bytes, const void* other, int n_other) {
    uint8_t* const to = ring.slots + slot * ring.slot_bytes;
    // Asleep a while: who asks on and on takes turns from the warps that multiply.
    while (!ptx::mbarrier_is_complete(ring.empty + 8 * slot, parity)) __nanosleep(kRingSleep);
    // The copy that makes room is there when its slot is full, or was and is already given
    // back: somebody may have filled the slot again, whose parity then says that the copy is to
    // come. It cannot have been given back twice, since what comes here is taken before.
    const int most_copies = *ring.most_copies;
    if (most_copies != 0) {
      const int before = slot - most_copies;
      const int its_slot = before < 0 ? before + ring.n_slots : before;
      const int its_parity = before < 0 ? parity : parity ^ 1;
      while (!ptx::mbarrier_is_complete(ring.full + 8 * its_slot, its_parity) &&
             !ptx::mbarrier_is_complete(ring.empty + 8 * its_slot, its_parity)) {
        __nanosleep(kRingSleep);
      }
    }
    auto* const barrier = static_cast<uint64_t*>(__cvta_shared_to_generic(ring.full + 8 * slot));
    ptx::mbarrier_expect(barrier, n_bytes + n_other);
    if (n_bytes != 0) ptx::bulk_copy(to, from, n_bytes, barrier, policy);
    if (n_other != 0) ptx::bulk_copy(to + kStageBytes, other, n_other, barrier, policy);
    slot += kStepProducers;
    if (slot >= ring.n_slots) {
      slot -= ring.n_slots;
      parity ^= 1;
    }
  };
  const CacheStages cache = cache_stages(p.attention, attention_share(p.attention, p.input->pos));
  unsigned n_issued = 0;  // by all producers, in front of the group
  StepMatrix entries{};   // lane i has the layer's i-th pair of pointers
  for (int step = 0; step <= 4 * p.n_layers; ++step) {
    const int layer = step / 4, phase = layer == p.n_layers ? int(kHead) : step % 4;
    if (step % 4 == 0 && lane < kLayerPairs) entries = pointer_pair(p.layers[layer], lane);
    const auto entry = [&](const uint8_t* of_lane, int i) {
      return reinterpret_cast<const uint8_t*>(
          __shfl_sync(~0u, reinterpret_cast<unsigned long long>(of_lane), i));
    };
    if (phase == kWo && cache.n_stages != 0) {
      const uint8_t* const keys = entry(entries.weights, kCachePair);
      const uint8_t* const values = entry(entries.scales, kCachePair);
      const uint8_t* const key_scales = entry(entries.weights, kCachePair + 1);
      const uint8_t* const value_scales = entry(entries.scales, kCachePair + 1);
      const int turn = int((unsigned(producer) - n_issued) % kStepProducers);
      for (int i = turn; lane == 0 && i < 2 * cache.n_stages; i += kStepProducers) {
        const int64_t row = cache.first_row + i / 2 * cache.stage_rows;
        const int n_rows = cache.rows_of(i / 2);
        const int n_scale_bytes = p.attention.is_u8 ? cache.scale_bytes(row, n_rows) : 0;
        put((i % 2 == 0 ? keys : values) + row * cache.row_bytes, n_rows * cache.row_bytes,
            (i % 2 == 0 ? key_scales : value_scales) + (row & ~int64_t{3}) * 4, n_scale_bytes);
      }
      n_issued += unsigned(2 * cache.n_stages);
    }
    const StepProduct product = products[phase];
    const int half_shift = phase == kGateUp ? 1 : 0;
    const bool is_float = product.format <= StepFormat::BF16;
    const int row_shift = is_float ? kFloatRowsLog : 0;
    const int n_streams = product.count << (half_shift + row_shift);
    // Behind the last row of floats there is none: any other will do.
    const int last = is_float ? product.out_dim - 1 : INT_MAX;
    for (int i = product.part.exists() ? -2 : 0, n; i < n_streams; i += n) {
      const bool is_part = i < 0;
      n = is_part ? 2 : stream_group(n_streams - i);
      const StepStages stages = is_part ? product.part.stages : StepStages{0, product.n_stages};
      const unsigned turn = (unsigned(producer) - n_issued) % kStepProducers;
      n_issued += unsigned(n * (stages.end - stages.begin));
      const int n_log = n >> 1, stream = i + int(turn & unsigned(n - 1));  // log2 of 1, 2 and 4
      const int tile_index = stream >> row_shift;
      const int its_tile = is_part ? product.part.tile : product.begin + (tile_index >> half_shift);
      const StepTile tile =
          step_tile(product, phase, its_tile, tile_index & ((1 << half_shift) - 1));
      const int matrix = first_matrix(phase) + tile.matrix;
      const uint8_t* const all_weights = entry(entries.weights, matrix);
      const uint8_t* const all_scales = entry(entries.scales, matrix);
      if (lane != 0) continue;
      const int row = min((tile.row_tile << row_shift) + (stream & ((1 << row_shift) - 1)), last);
      const uint8_t* const weights = all_weights + int64_t{row} * product.level_bytes;
      const uint8_t* const scales = all_scales + int64_t{tile.row_tile} * product.tile_scale_bytes;
      for (int stage = stages.begin + (int(turn) >> n_log); stage < stages.end;
           stage += kStepProducers >> n_log) {
        const int from = stage * kStageBytes, scales_from = stage * product.stage_scale_bytes;
        put(weights + from, min(kStageBytes, product.level_bytes - from), scales + scales_from,
            min(product.stage_scale_bytes, product.tile_scale_bytes - scales_from));
      }
    }
  }
}

}  // namespace minfer::cuda
