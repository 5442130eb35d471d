#pragma once

#include "kernels/cuda/decode/step_params.h"
#include "kernels/cuda/ptx.cuh"

// The ring of weights: one warp fills it along the way that the others take through all products of
// the step. It waits for slots alone, never for activations, so that the memory is busy while
// blocks exchange theirs.
namespace minfer::cuda {

struct StepRing {
  uint8_t* slots;
  uint64_t *full, *empty;  // [n_slots]
  int n_slots, slot_bytes;
};

// A tile of a product: its matrix, of those of the product, and which tile of that it is.
struct StepTile {
  int matrix, row_tile;
};
__device__ inline StepTile step_tile(const StepProduct& p, int phase, int tile, int half_of_pair) {
  if (phase == kGateUp) return {half_of_pair, tile};
  const int part = (tile >= p.ends[0]) + (tile >= p.ends[1]);
  return {part, tile - (part == 0 ? 0 : part == 1 ? p.ends[0] : p.ends[1])};
}

// In flight at most `in_flight` stages: what is asked for stands in front of what other blocks
// exchange, and more than the latency hides brings nothing. `products` in shared memory.
__device__ inline void fill_ring(const StepLayer* layers, int n_layers,
                                 const StepProduct* products, const StepRing& ring, int in_flight) {
  const int lane = int(threadIdx.x) % 32, block = int(blockIdx.x);
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  int slot = 0, parity = 1, awaited = 0, awaited_parity = 0, issued = 0;
  StepMatrix matrices{};  // lane i has matrix i of the layer
  for (int step = 0; step <= 4 * n_layers; ++step) {
    const int layer = step / 4, phase = layer == n_layers ? int(kHead) : step % 4;
    if (step % 4 == 0 && lane < 7) matrices = layers[layer].matrices[lane];
    const StepProduct product = products[phase];
    const int first = product.share.begin(block), count = product.share.count(block);
    const int n_halves = phase == kGateUp ? 2 : 1;
    const bool is_float = product.format <= StepFormat::BF16;
    for (int i = 0; i < count * n_halves; ++i) {
      const StepTile tile = step_tile(product, phase, first + i / n_halves, i % n_halves);
      const int from = first_matrix(phase) + tile.matrix;
      const auto of_matrix = [&](const uint8_t* p) {
        return reinterpret_cast<const uint8_t*>(
            __shfl_sync(~0u, reinterpret_cast<unsigned long long>(p), from));
      };
      const uint8_t* weights = of_matrix(matrices.weights);
      const uint8_t* scales = of_matrix(matrices.scales) +
                              int64_t{tile.row_tile} * product.tile_scale_bytes;
      const int n_rows = is_float ? kFloatRows : 1;
      const int row_tile_bytes = n_rows * product.level_bytes;
      weights += int64_t{tile.row_tile} * row_tile_bytes;
      int level_bytes = product.level_bytes, scale_bytes = product.tile_scale_bytes;
      for (int stage = 0; stage < product.n_stages; ++stage) {
        const int n_levels = min(kStageBytes, level_bytes);
        const int n_scales = min(product.stage_scale_bytes, scale_bytes);
        for (int row = 0; row < n_rows; ++row) {
          if (lane == 0) {
            ptx::mbarrier_wait(ring.empty + slot, parity);
            if (issued >= in_flight) {
              ptx::mbarrier_wait(ring.full + awaited, awaited_parity);
              if (++awaited == ring.n_slots) {
                awaited = 0;
                awaited_parity ^= 1;
              }
            }
            uint8_t* const to = ring.slots + slot * ring.slot_bytes;
            uint64_t* const full = ring.full + slot;
            ptx::mbarrier_expect(full, n_levels + n_scales);
            // Behind the last row there is none: any other will do.
            const bool is_behind = tile.row_tile * n_rows + row >= product.out_dim;
            ptx::bulk_copy(to, weights + (is_behind ? 0 : row * product.level_bytes), n_levels,
                           full, policy);
            if (n_scales != 0) ptx::bulk_copy(to + kStageBytes, scales, n_scales, full, policy);
          }
          ++issued;
          if (++slot == ring.n_slots) {
            slot = 0;
            parity ^= 1;
          }
        }
        weights += kStageBytes;
        level_bytes -= kStageBytes;
        scales += product.stage_scale_bytes;
        scale_bytes -= product.stage_scale_bytes;
      }
    }
  }
}

}  // namespace minfer::cuda
