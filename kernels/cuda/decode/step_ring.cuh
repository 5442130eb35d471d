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
};

// Where a stage of a tile lies in memory.
struct StepTile {
  const StepMatrix* matrix;
  int row_tile;  // in its matrix
};
__device__ inline StepTile step_tile(const StepProduct& p, const StepMatrix* matrices, int phase,
                                     int tile, int half_of_pair) {
  if (phase == kGateUp) return {matrices + half_of_pair, tile};
  const int part = (tile >= p.ends[0]) + (tile >= p.ends[1]);
  return {matrices + part, part == 0 ? tile : tile - p.ends[part - 1]};
}

// In flight at most p.in_flight stages: what is asked for stands in front of what other blocks
// exchange, and more than the latency hides brings nothing.
__device__ inline void fill_ring(const StepParams& p, const StepRing& ring) {
  const int lane = int(threadIdx.x) % 32, block = int(blockIdx.x);
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  int slot = 0, parity = 1, awaited = 0, awaited_parity = 0, issued = 0;
  for (int step = 0; step <= 4 * p.n_layers; ++step) {
    const int layer = step / 4, phase = layer == p.n_layers ? int(kHead) : step % 4;
    const StepProduct& product = p.products[phase];
    const StepMatrix* const matrices = p.layers[layer].matrices + first_matrix(phase);
    const int first = product.share.begin(block), count = product.share.count(block);
    const int n_halves = phase == kGateUp ? 2 : 1;
    for (int i = 0; i < count * n_halves; ++i) {
      const StepTile tile =
          step_tile(product, matrices, phase, first + i / n_halves, i % n_halves);
      const uint8_t* const weights = tile.matrix->weights;
      const uint8_t* const scales = tile.matrix->scales;
      const bool is_float = product.format <= StepFormat::BF16;
      for (int stage = 0; stage < product.n_stages; ++stage) {
        const int pieces = min(kStagePieces, product.n_pieces - stage * kStagePieces);
        if (lane == 0) {
          ptx::mbarrier_wait(ring.empty + slot, parity);
          if (issued >= p.in_flight) {
            ptx::mbarrier_wait(ring.full + awaited, awaited_parity);
            if (++awaited == p.n_slots) {
              awaited = 0;
              awaited_parity ^= 1;
            }
          }
        }
        ++issued;
        uint8_t* const to = ring.slots + slot * p.slot_bytes;
        uint64_t* const full = ring.full + slot;
        if (is_float) {  // 4 rows of 1024 columns
          const int bytes = min(2048, product.tile_bytes - stage * 2048);
          if (lane == 0) ptx::mbarrier_expect(full, 4 * bytes);
          __syncwarp();
          if (lane < 4) {
            const int row = min(tile.row_tile * 4 + lane, product.out_dim - 1);
            ptx::bulk_copy(to + lane * 2048,
                           weights + int64_t{row} * product.tile_bytes + stage * 2048, bytes, full,
                           policy);
          }
        } else if (lane == 0) {
          const int scale_bytes =
              min(product.stage_scale_bytes,
                  product.tile_scale_bytes - stage * product.stage_scale_bytes);
          ptx::mbarrier_expect(full, pieces * kPieceBytes + scale_bytes);
          ptx::bulk_copy(to, weights + int64_t{tile.row_tile} * product.tile_bytes +
                                 stage * kStageBytes,
                         pieces * kPieceBytes, full, policy);
          if (scale_bytes != 0) {
            ptx::bulk_copy(to + kStageBytes,
                           scales + int64_t{tile.row_tile} * product.tile_scale_bytes +
                               stage * product.stage_scale_bytes,
                           scale_bytes, full, policy);
          }
        }
        __syncwarp();
        if (++slot == p.n_slots) {
          slot = 0;
          parity ^= 1;
        }
      }
    }
  }
}

}  // namespace minfer::cuda
