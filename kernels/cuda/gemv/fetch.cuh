#pragma once

#include "kernels/cuda/gemv/fragments.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/quant/packed_layout.h"

// Which chunks a warp multiplies, and how it copies them into its ring.
namespace minfer::cuda {

// The steps of a block are the chunks of its tiles, one tile after the other. Each team of warps
// takes an equal, contiguous run of steps, and its warps take turns within the run. A warp stores a
// partial sum for every tile that its team's run touches; if the run is empty, for the tile where
// it would begin. So the warps with the same place in their teams store at most
// n_tiles - 1 + (number of teams) partial sums.
struct GemvRun {
  int n_tiles, n_all;      // tiles and steps of the block
  int stride, team_shift;  // warps of a team: a warp takes every stride-th step; log2 of it
  int team, member;
  int tile, chunk;  // of the warp's first step; chunk may lie past the end of the tile
  int rest;         // steps from the begin of `tile` to the end of the team's run

  __device__ GemvRun(const GemvParams& p, int warp, int block) {
    const int rounds = p.rounds + (block < p.n_longer ? 1 : 0);
    n_tiles = rounds * p.tiles_of_round;
    n_all = n_tiles * p.n_chunks;
    team_shift = p.team_shift;
    stride = 1 << team_shift;
    team = warp >> team_shift;
    member = warp & (stride - 1);
    tile = begin_of(team) / p.n_chunks;
    chunk = begin_of(team) - tile * p.n_chunks + member;
    rest = begin_of(team + 1) - tile * p.n_chunks;
  }

  __device__ int log_teams() const { return kGemvWarpsLog - team_shift; }
  __device__ int begin_of(int which) const { return (n_all * which) >> log_teams(); }
  // The team whose run holds a step: the last one whose run begins at or before it.
  __device__ int team_of(int step) const { return (((step + 1) << log_teams()) - 1) / n_all; }
  // Number of steps of this warp.
  __device__ int n_steps() const { return max(0, (rest - chunk + stride - 1) >> team_shift); }
  // Index of the warp's partial sum of a tile.
  __device__ int partial(int of_tile) const { return ((of_tile + team) << team_shift) + member; }
};

// The part (matrix) that a tile of the block belongs to, and its index in that part.
struct GemvTile {
  int part, row_tile;
};
__device__ inline GemvTile tile_of(const GemvParams& p, int tile) {
  if (p.pairs) return {tile & 1, int(blockIdx.x) + (tile >> 1) * int(gridDim.x)};
  const int at = int(blockIdx.x) + tile * int(gridDim.x);
  const int part = (at >= p.ends[0]) + (at >= p.ends[1]);
  return {part, at - p.begins[part]};
}

// The block's number: with experts, among those that work on its row of x.
template <bool kExperts>
__device__ inline int gemv_block(const GemvParams& p) {
  return kExperts ? int(blockIdx.x) % p.experts.blocks_of_row : int(blockIdx.x);
}

// With experts: which of the chosen ones a tile of the block belongs to, besides. The tiles of a
// round are those of gate and up of one expert, or of one row tile of all of them.
struct ExpertGemvTile {
  int part, slot, row_tile;
};
__device__ inline ExpertGemvTile expert_tile_of(const GemvParams& p, int tile) {
  const GemvExperts& e = p.experts;
  const int round = tile / p.tiles_of_round, in_round = tile - round * p.tiles_of_round;
  const int at = gemv_block<true>(p) + round * e.blocks_of_row;
  if (!p.pairs) return {0, in_round, at};
  return {in_round, at / e.row_tiles, at % e.row_tiles};
}

// Issues the copies of a warp, step after step. Each lane copies the 16-byte words that it will
// multiply itself; scales and mins follow them in the slot.
template <typename T, GemvWeights kWeights, int kScales, GemvScales kKind, bool kExperts = false>
struct GemvFetch {
  static constexpr bool kPacked = kWeights != GemvWeights::Float;
  static constexpr int kChunkBytes = chunk_bytes_of(kWeights);

  const uint8_t* words;  // where the lane's words of the next step are
  const uint8_t* scales;
  const uint8_t* mins;
  int row_8;  // float weights: bytes from row g to row g + 8
  int tile, chunk, stride;
  const GemvExpert* experts;  // with experts: in shared memory

  __device__ GemvFetch(const GemvParams& p, const GemvRun& run, const GemvExpert* chosen = nullptr)
      : words(nullptr),
        scales(nullptr),
        mins(nullptr),
        row_8(0),
        tile(run.tile),
        chunk(run.chunk),
        stride(run.stride),
        experts(chosen) {
    if (run.n_steps() > 0) seek(p);
  }

  // Sets the pointers to the step at `tile` and `chunk`, which must not lie past the block's last.
  __device__ void seek(const GemvParams& p) {
    while (chunk >= p.n_chunks) {
      chunk -= p.n_chunks;
      ++tile;
    }
    if constexpr (kExperts) {
      const ExpertGemvTile at = expert_tile_of(p, tile);
      const ExpertPlace& place = experts[at.slot].places[at.part];
      seek(p, {place.weights, place.scales, place.mins, nullptr, nullptr, p.parts[0].out_dim},
           at.row_tile);
    } else {
      const auto [part_index, row_tile] = tile_of(p, tile);
      seek(p, p.parts[part_index], row_tile);
    }
  }

  __device__ void seek(const GemvParams& p, const GemvPartParams& part, int row_tile) {
    const int lane = int(threadIdx.x) % 32;
    if constexpr (!kPacked) {
      const int first = row_tile * kTileRows + lane / 4, last = part.out_dim - 1;
      const int row = min(first, last);  // results of rows past the last one are not stored
      words = static_cast<const uint8_t*>(part.weights) +
              (int64_t{row} * p.in_dim + chunk * kTileColumns + lane % 4 * 8) * 2;
      row_8 = (min(first + 8, last) - row) * p.in_dim * 2;
    } else {
      words = static_cast<const uint8_t*>(part.weights) + int64_t{row_tile} * p.row_tile_bytes +
              (chunk * kChunkBytes + lane * 16);
      if (kScales != 0) {
        const int64_t index = int64_t{row_tile} * p.n_chunks + chunk;
        scales = static_cast<const uint8_t*>(part.scales) + index * p.scale_bytes + lane * 16;
        if (has_mins(kKind) && !are_products(kKind)) {
          mins = reinterpret_cast<const uint8_t*>(part.mins) + index * p.min_bytes + lane * 16;
        }
      }
    }
  }

  // Starts copying the step's chunk to a slot, and advances to the next step.
  __device__ void begin(uint32_t slot, const GemvParams& p) {
    const int lane = int(threadIdx.x) % 32;
    const uint32_t to = slot + uint32_t(lane * 16);
    if (chunk >= p.n_chunks) seek(p);
    if constexpr (!kPacked) {
      const int columns = p.in_dim - chunk * kTileColumns;
      if (columns >= kTileColumns) {
        ptx::copy_async_16(to, words);
        ptx::copy_async_16(to + 512, words + 64);
        ptx::copy_async_16(to + 1024, words + row_8);
        ptx::copy_async_16(to + 1536, words + row_8 + 64);
      } else {  // columns past the last one are zeros, without a read
        const int first = lane % 4 * 8 < columns ? 16 : 0;
        const int second = lane % 4 * 8 + 32 < columns ? 16 : 0;
        ptx::copy_async_16(to, words, first);
        ptx::copy_async_16(to + 512, words + 64, second);
        ptx::copy_async_16(to + 1024, words + row_8, first);
        ptx::copy_async_16(to + 1536, words + row_8 + 64, second);
      }
      words += stride * (kTileColumns * 2);
    } else {
      const int n_bytes = p.row_tile_bytes - chunk * kChunkBytes;
#pragma unroll
      for (int piece = 0; piece < kChunkBytes; piece += kPieceBytes) {
        if (n_bytes >= kChunkBytes) {
          ptx::copy_async_16(to + uint32_t(piece), words + piece);
        } else {  // the last chunk may be short
          ptx::copy_async_16(to + uint32_t(piece), words + piece, piece < n_bytes ? 16 : 0);
        }
      }
      words += stride * kChunkBytes;
      if (kScales != 0) {
        // Those of F16 are at most 512 bytes, those of F32 1024, records 1312.
        constexpr int kMost = are_products(kKind) ? 1536 : are_f32(kKind) ? 1024 : 512;
#pragma unroll
        for (int i = 0; i < kMost; i += 512) {
          if (lane * 16 + i < p.scale_bytes) {
            ptx::copy_async_16(to + uint32_t(kChunkBytes + i), scales + i);
          }
        }
        if (has_mins(kKind) && !are_products(kKind)) {
#pragma unroll
          for (int i = 0; i < 1024; i += 512) {
            if (lane * 16 + i < p.min_bytes) {
              ptx::copy_async_16(to + uint32_t(kChunkBytes + p.scale_bytes + i), mins + i);
            }
          }
          mins += stride * p.min_bytes;
        }
        scales += stride * p.scale_bytes;
      }
    }
    chunk += stride;
  }
};

}  // namespace minfer::cuda
