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
template <bool kPacked>
struct GemvRun {
  static constexpr int kTeamShift = team_shift(kPacked), kStride = 1 << kTeamShift;

  int n_tiles, n_all;  // tiles and steps of the block
  Divisor by_all;
  int team, member;
  int tile, chunk;  // of the warp's first step; chunk may lie past the end of the tile
  int rest;         // steps from the begin of `tile` to the end of the team's run

  __device__ GemvRun(const GemvParams& p, int warp, int block) {
    const bool is_longer = block < p.n_longer;
    n_tiles = (p.rounds + (is_longer ? 1 : 0)) * p.tiles_of_round;
    by_all = p.by_steps[is_longer ? 1 : 0];
    n_all = n_tiles * p.n_chunks;
    team = warp >> kTeamShift;
    member = warp & (kStride - 1);
    tile = p.by_chunks.quotient(begin_of(team));
    chunk = begin_of(team) - tile * p.n_chunks + member;
    rest = begin_of(team + 1) - tile * p.n_chunks;
  }

  static constexpr int kLogTeams = kGemvWarpsLog - kTeamShift;
  __device__ int begin_of(int which) const { return (n_all * which) >> kLogTeams; }
  // The team whose run holds a step: the last one whose run begins at or before it.
  __device__ int team_of(int step) const { return by_all.quotient(((step + 1) << kLogTeams) - 1); }
  // Number of steps of this warp.
  __device__ int n_steps() const { return max(0, (rest - chunk + kStride - 1) >> kTeamShift); }
  // Index of the warp's partial sum of a tile.
  __device__ int partial(int of_tile) const { return ((of_tile + team) << kTeamShift) + member; }
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
  if (!kExperts) return int(blockIdx.x);
  const GemvExperts& e = p.experts;
  return int(blockIdx.x) - e.by_blocks_of_row.quotient(int(blockIdx.x)) * e.blocks_of_row;
}

// With experts: which of the chosen ones a tile of the block belongs to, besides. The tiles of a
// round are those of gate and up of one expert, or of one row tile of all of them.
struct ExpertGemvTile {
  int part, slot, row_tile;
};
// GemvParams::tiles_of_round.
template <GemvUse kUse>
__device__ inline int tiles_of_round(const GemvParams& p) {
  return kUse == GemvUse::GateUp ? 2 : p.tiles_of_round;
}
template <GemvUse kUse>
__device__ inline ExpertGemvTile expert_tile_of(const GemvParams& p, int tile) {
  const GemvExperts& e = p.experts;
  const int round = kUse == GemvUse::GateUp ? tile / 2 : e.by_tiles_of_round.quotient(tile);
  const int in_round = tile - round * tiles_of_round<kUse>(p);
  const int at = gemv_block<true>(p) + round * e.blocks_of_row;
  if (kUse == GemvUse::Down) return {0, in_round, at};
  const int slot = e.by_row_tiles.quotient(at);
  return {in_round, slot, at - slot * e.row_tiles};
}

// Issues the copies of a warp, step after step. Each lane copies the 16-byte words that it will
// multiply itself; scales and mins follow them in the slot.
template <typename T, GemvWeights kWeights, int kScales, GemvScales kKind, GemvUse kUse>
struct GemvFetch {
  static constexpr bool kPacked = kWeights != GemvWeights::Float;
  static constexpr int kChunkBytes = chunk_bytes_of(kWeights);
  using Run = GemvRun<kPacked>;

  const uint8_t* words;  // where the lane's words of the next step are
  const uint8_t* scales;
  const uint8_t* mins;
  int row_8;  // float weights: bytes from row g to row g + 8
  int tile;
  int rest;  // of the tile, from the next step on: bytes of codes or columns of floats
  const GemvExpert* experts;  // with experts: in shared memory

  __device__ GemvFetch(const GemvParams& p, const Run& run, const GemvExpert* chosen = nullptr)
      : words(nullptr),
        scales(nullptr),
        mins(nullptr),
        row_8(0),
        tile(run.tile),
        rest(0),
        experts(chosen) {
    if (run.n_steps() > 0) seek(p, run.chunk);
  }

  // Bytes of the codes of a row tile, or columns of a row of floats; kChunkSize of a chunk.
  __device__ static int row_size(const GemvParams& p) {
    return kPacked ? p.row_tile_bytes : p.in_dim;
  }
  static constexpr int kChunkSize = kPacked ? kChunkBytes : kTileColumns;

  // Sets the pointers to the step at `chunk` of `tile`. chunk may count on into the tiles behind,
  // not past the block's last.
  __device__ void seek(const GemvParams& p, int chunk) {
    while (chunk >= p.n_chunks) {
      chunk -= p.n_chunks;
      ++tile;
    }
    rest = row_size(p) - chunk * kChunkSize;
    if constexpr (is_of_experts(kUse)) {
      const ExpertGemvTile at = expert_tile_of<kUse>(p, tile);
      const ExpertPlace& place = experts[at.slot].places[at.part];
      seek(p, {place.weights, place.scales, place.mins, nullptr, nullptr, p.parts[0].out_dim},
           at.row_tile, chunk);
    } else {
      const auto [part_index, row_tile] = tile_of(p, tile);
      seek(p, p.parts[part_index], row_tile, chunk);
    }
  }

  __device__ void seek(const GemvParams& p, const GemvPartParams& part, int row_tile, int chunk) {
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

  // Starts copying the step's chunk to a slot, of which `to` is the lane's first word, and advances
  // to the next step.
  __device__ void begin(uint32_t to, const GemvParams& p) {
    const int lane = int(threadIdx.x) % 32;
    if (rest <= 0) seek(p, (row_size(p) - rest) / kChunkSize);
    if constexpr (!kPacked) {
      // Columns past the last one are zeros, without a read.
      const int first = lane % 4 * 8 < rest ? 16 : 0;
      const int second = lane % 4 * 8 + 32 < rest ? 16 : 0;
      ptx::copy_async_16(to, words, first);
      ptx::copy_async_16(to + 512, words + 64, second);
      ptx::copy_async_16(to + 1024, words + row_8, first);
      ptx::copy_async_16(to + 1536, words + row_8 + 64, second);
      words += Run::kStride * (kTileColumns * 2);
    } else {
#pragma unroll
      for (int piece = 0; piece < kChunkBytes; piece += kPieceBytes) {
        // The last chunk may be short.
        ptx::copy_async_16(to + uint32_t(piece), words + piece, piece < rest ? 16 : 0);
      }
      words += Run::kStride * kChunkBytes;
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
          mins += Run::kStride * p.min_bytes;
        }
        scales += Run::kStride * p.scale_bytes;
      }
    }
    rest -= Run::kStride * kChunkSize;
  }
};

}  // namespace minfer::cuda
