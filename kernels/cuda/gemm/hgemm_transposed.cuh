#pragma once

#include "kernels/cuda/gemm/hgemm_out.cuh"
#include "kernels/cuda/gemm/hgemm_ring.cuh"
#include "kernels/cuda/gemm/wgmma.cuh"

namespace minfer::cuda {

// A tile of kTokens rows of x and, for each consumer, kBlocks blocks of 64 weight rows. kStagedRows
// rows of out are staged at once: fewer than 64 if that makes room for another stage of the ring.
template <int kWarpgroupsOfTile, int kBlocks, int kTokens, int kDepth, int kStagedRows = 64>
struct TransposedTile {
  static constexpr int kWarpgroups = kWarpgroupsOfTile;  // consumers
  static constexpr int kRowBlocks = kBlocks;
  static constexpr int kM = kTokens, kN = 64 * kWarpgroups * kRowBlocks, kStages = kDepth;
  static constexpr int kChunk = kStagedRows, kRest = kM % kChunk;
  static constexpr int kHalfN = kN / 2;  // weight rows of a TMA box
  template <HgemmKind kKind>
  static constexpr int kOut = kKind == HgemmKind::SwiGlu ? kHalfN : kN;  // columns of out
  static constexpr int kBand = 16;                                       // see place_of
  static constexpr bool kGeluLags = gelu_lags(kM, kN);
  static constexpr int kThreads = 128 * (kWarpgroups + 1);
  static constexpr int kXBytes = kM * kStepK * 2, kWBytes = kN * kStepK * 2;
  struct alignas(1024) Shared {
    uint8_t w[kStages][kWBytes];
    uint8_t x[kStages][kXBytes];
    uint8_t staging[kWarpgroups][2][kChunk * 128];
    uint64_t full[kStages], empty[kStages];
  };
  static_assert(sizeof(Shared) <= 232448);
  static_assert(kM % 8 == 0 && kM <= 256 && kHalfN % 8 == 0);
  static_assert(kChunk % 8 == 0 && kRest > 0);  // 1024-byte aligned buffers; no empty box
  // Whether split-K can spread chunks of rows of out over a cluster, with the partial sums in the
  // ring.
  static constexpr bool kCanSplit = kRowBlocks == 1;
  static_assert(!kCanSplit || kWarpgroups * 64 * kM * 4 <= kStages * (kXBytes + kWBytes));
};
using Tile104x256 = TransposedTile<2, 2, 104, 4>;
using Tile136x256 = TransposedTile<2, 2, 136, 4, 48>;
using Tile152x128 = TransposedTile<2, 1, 152, 5>;
using Tile152x192 = TransposedTile<3, 1, 152, 4>;
using Tile200x128 = TransposedTile<2, 1, 200, 4>;

// x loads kM rows, x_tail the rows of the last tile, w half of a tile's weight rows. out stores
// kChunk rows of 128 bytes, out_rest the last kRest rows of a tile.
struct TransposedMaps {
  CUtensorMap x, x_tail, w[kMaxGemmParts], out[kMaxGemmParts], out_rest[kMaxGemmParts];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// The producer, as load_tiles of hgemm_kernel, but always forwards over k.
template <typename Tile, HgemmKind kKind>
__device__ inline void load_transposed(typename Tile::Shared& s, const TransposedMaps& maps,
                                       const GemmArgs& args, const HgemmCut& cut,
                                       const BlockSlice& slice) {
  constexpr int kM = Tile::kM, kHalfN = Tile::kHalfN, kOut = Tile::template kOut<kKind>;
  constexpr bool kIsSwiGlu = kKind == HgemmKind::SwiGlu;
  RingPlace<Tile> ring(s);
  for (int tile = slice.first_tile; tile < slice.n_tiles; tile += slice.stride) {
    const GemmPlace place = place_of<Tile::kBand>(args, cut, slice, tile);
    const int row = place.row_tile * kM, first_column = place.column_tile * kOut;
    // With an odd number of row tiles, no rows are left for the second block of the last pair.
    const int rows_left = max(0, args.m - row);
    const CUtensorMap* const x_map = rows_left >= kM ? &maps.x : &maps.x_tail;
    // The second half of the weight rows may lie past the end: its place keeps old contents.
    const int n_halves = kIsSwiGlu || first_column + kHalfN < args.part[place.part].n ? 2 : 1;
    const int n_bytes = (min(kM, rows_left) + n_halves * kHalfN) * kStepK * 2;
    for (int step = slice.k_begin; step < slice.k_end; ++step) {
      ring.wait_until_read();
      ptx::mbarrier_expect(ring.full(), n_bytes);
      const int at = step * kStepK;
      if (rows_left > 0) ptx::tensor_load(s.x[ring.slot()], x_map, ring.full(), at, row);
      for (int half = 0; half < n_halves; ++half) {
        uint8_t* const to = s.w[ring.slot()] + half * (Tile::kWBytes / 2);
        const CUtensorMap* const w_map = maps.w + (kIsSwiGlu ? half : place.part);
        const int column = first_column + (kIsSwiGlu ? 0 : half * kHalfN);
        if (!slice.is_paired) {
          ptx::tensor_load(to, w_map, ring.full(), at, column);
        } else if (half == slice.rank) {
          ptx::tensor_load_to_both(to, w_map, ring.full(), at, column);
        }
      }
      ring.advance();
    }
  }
}

// Stores the results of a consumer warpgroup, a chunk of rows of 64 columns at a time. All of its
// threads call.
template <typename T, typename Tile>
class TransposedOut {
 public:
  // staging: two buffers, of which F32 takes both; barrier: the id of the warpgroup's named barrier
  __device__ TransposedOut(const TransposedMaps& maps, const GemmArgs& args, const HgemmCut& cut,
                           uint8_t (&staging)[2][Tile::kChunk * 128], int barrier, bool out_is_f32)
      : maps_(maps),
        args_(args),
        cut_(cut),
        staging_(staging),
        barrier_(barrier),
        out_is_f32_(out_is_f32) {}

  // sums: in each 8 rows of out, a thread has two rows of two columns.
  __device__ void store(const float (&sums)[Tile::kChunk / 2], int part, int row, int n_rows,
                        int column) {
    if (threadIdx.x % 128 == 0) {
      if (out_is_f32_) {
        ptx::bulk_wait_read<0>();
      } else {
        ptx::bulk_wait_read<1>();
      }
    }
    ptx::named_barrier(barrier_, 128);
    if (out_is_f32_) {
      stage_floats(sums, n_rows);
    } else {
      stage_halves(sums, n_rows);
    }
    ptx::fence_for_copy_engine();
    ptx::named_barrier(barrier_, 128);
    if (out_is_f32_) {
      send(staging_[0], part, row, n_rows, column);
      send(staging_[1], part, row, n_rows, column + 32);
    } else {
      send(staging_[turn_], part, row, n_rows, column);
      turn_ ^= 1;
    }
    if (threadIdx.x % 128 == 0) ptx::bulk_commit();  // even if empty: bulk_wait_read counts groups
  }

 private:
  static constexpr int kSums = Tile::kChunk / 2;

  __device__ void stage_floats(const float (&sums)[kSums], int n_rows) const {
    const int warp = static_cast<int>(threadIdx.x) % 128 / 32, lane = threadIdx.x % 32;
    uint8_t* const to = staging_[warp / 2];  // warps 0 and 1 have the first 32 columns
#pragma unroll
    for (int j = 0; j < kSums; ++j) {
      if (j * 2 >= n_rows) continue;
      const int r = j / 4 * 8 + lane % 4 * 2 + j % 2;
      const int byte = (warp % 2 * 16 + lane / 4 + j / 2 % 2 * 8) * 4;
      *reinterpret_cast<float*>(to + staged_at<128>(r, byte / 16) + byte % 16) = sums[j];
    }
  }
  __device__ void stage_halves(const float (&sums)[kSums], int n_rows) const {
    const int warp = static_cast<int>(threadIdx.x) % 128 / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < kSums; j += 4) {
      if (j * 2 >= n_rows) continue;
      const int r = j * 2 + lane % 8, at = warp * 2 + lane / 8 % 2;
      ptx::store_matrix_x2_transposed(staging_[turn_] + staged_at<128>(r, at),
                                      pack_pair<T>(sums[j], sums[j + 1]),
                                      pack_pair<T>(sums[j + 2], sums[j + 3]));
    }
  }
  // Stores 128 bytes of each row.
  __device__ void send(const uint8_t* staging, int part_index, int row, int n_rows,
                       int column) const {
    const GemmArgs::Part& part = args_.part[part_index];
    if (column >= part.n) return;
    if (!cut_.out_by_map[part_index]) {
      send_elements<T, 128>(args_, part, out_is_f32_, staging, row, n_rows, column);
    } else if (threadIdx.x % 128 == 0) {
      const auto& map = (n_rows == Tile::kChunk ? maps_.out : maps_.out_rest)[part_index];
      send_box(args_, map, out_is_f32_, staging, row, column);
    }
  }

  const TransposedMaps& maps_;
  const GemmArgs& args_;
  const HgemmCut& cut_;
  uint8_t (&staging_)[2][Tile::kChunk * 128];
  int barrier_;
  bool out_is_f32_;
  int turn_ = 0;
};
#endif

// out_iT = epilogue(w_i xT + bias_i) for the parts i; see Epilogue
//
// As hgemm_kernel, but transposed: the 64 rows of a wgmma are weight rows, of which there are whole
// tiles, and its columns are the rows of x, in tiles of any multiple of 8. So a number of tokens
// that is not a multiple of 64 can nearly fill its tiles.
//
//   x, w      [m, k], [n_i, k] T, rows 16-byte aligned
//   out       [m, n_i] T or F32
//   launch    as hgemm_kernel, with kM x kN accumulators per tile, but each tile is stored at its
//             end; with split-K, each block finishes some rows
//   maths     as hgemm_kernel without pairs: for the same split, a sum has the same bits
//   moves     2 (m k + n k) bytes and out; bound by its 2 m n k flops. stmatrix transposes the
//             results on their way to shared memory
template <typename T, typename Tile, HgemmKind kKind>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    hgemm_transposed_kernel(const __grid_constant__ TransposedMaps maps,
                            const __grid_constant__ GemmArgs args,
                            const __grid_constant__ HgemmCut cut) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kM = Tile::kM, kHalfN = Tile::kHalfN, kOut = Tile::template kOut<kKind>;
  constexpr int kWarpgroups = Tile::kWarpgroups, kRowBlocks = Tile::kRowBlocks;
  constexpr int kChunk = Tile::kChunk, kRowBytes = kStepK * 2;
  constexpr bool kIsSwiGlu = kKind == HgemmKind::SwiGlu;
  static_assert(!kIsSwiGlu || kRowBlocks == 2);
  uint8_t* const raw = ptx::dynamic_shared();
  auto& s = *reinterpret_cast<typename Tile::Shared*>(raw);
  const int warpgroup = ptx::warpgroup_index();
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const BlockSlice slice = slice_of_block<Tile::kCanSplit, /*kCanPair=*/true>(args, cut);
  begin_gemm<Tile>(s, maps, slice);

  if (warpgroup == 0) {
    ptx::shrink_registers<kWarpgroups == 3 ? 32 : 40>();
    if (thread == 0) load_transposed<Tile, kKind>(s, maps, args, cut, slice);
    __syncwarp();
    slice.meet_for_sums();
    slice.meet_at_end();
    return;
  }

  ptx::grow_registers<kWarpgroups == 3 ? 160 : 232>();
  const int consumer = warpgroup - 1, warp = thread / 32, lane = thread % 32;
  RingPlace<Tile> ring(s);
  TransposedOut<T, Tile> out(maps, args, cut, s.staging[consumer], 1 + consumer,
                             !kIsSwiGlu && args.out_is_f32);
  if constexpr (kKind == HgemmKind::Gelu && Tile::kGeluLags) begin_behind<Tile>(s, consumer, slice);
  float d[kRowBlocks][kM / 2];  // 64 weight rows each, kHalfN rows apart
  for (int tile = slice.first_tile; tile < slice.n_tiles; tile += slice.stride) {
    const GemmPlace place = place_of<Tile::kBand>(args, cut, slice, tile);
    const GemmArgs::Part& part = args.part[place.part];
    const int first_row = place.row_tile * kM;
    const int first_column = place.column_tile * kOut + consumer * 64;
    const bool is_there = first_column < part.n && first_row < args.m;
    if (!is_there) {
      ring.skip(slice, 1 + consumer);
      if (slice.split == 1) continue;
    }
    int previous = -1;
    for (int step = is_there ? slice.k_begin : slice.k_end; step < slice.k_end; ++step) {
      ring.wait_until_full();
      const int slot = ring.slot();
      const uint64_t w_tile = ptx::wgmma_tile(s.w[slot] + consumer * 64 * kRowBytes);
      const uint64_t x_tile = ptx::wgmma_tile(s.x[slot]);
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < kStepK / 16; ++i) {
#pragma unroll
        for (int b = 0; b < kRowBlocks; ++b) {
          ptx::wgmma(d[b], w_tile + b * (kHalfN * kRowBytes / 16) + 2 * i, x_tile + 2 * i,
                     step > slice.k_begin || i > 0, T{});
        }
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();  // one K step stays in flight; the one before it has read its stage
      if (previous >= 0) ring.release(previous, slice.is_paired);
      previous = slot;
      ring.advance();
    }
    ptx::wgmma_wait<0>();
    if (previous >= 0) ring.release(previous, slice.is_paired);

    if constexpr (Tile::kCanSplit) {
      // Rank c % split finishes chunk c of the rows of out.
      constexpr int kChunks = (kM + kChunk - 1) / kChunk;
      if (slice.split > 1) {
        reduce_split_k<kWarpgroups, kChunk / 2, kChunks>(d[0], raw, consumer, slice);
      }
    }

    // A thread's accumulators belong to two weight rows of each block of 64.
#pragma unroll
    for (int b = 0; b < kRowBlocks; ++b) {
      const GemmArgs::Part& of = kIsSwiGlu ? args.part[b] : part;
      if (of.bias == nullptr) continue;
      const int at = first_column + (kIsSwiGlu ? 0 : b * kHalfN) + warp * 16 + lane / 4;
      const float biases[2] = {bias_at<T>(of, at), bias_at<T>(of, at + 8)};
#pragma unroll
      for (int j = 0; j < kM / 2; ++j) d[b][j] += biases[j / 2 % 2];
    }
    if constexpr (kKind == HgemmKind::Gelu) {
#pragma unroll
      for (int b = 0; b < kRowBlocks; ++b) activate_in_turns(d[b], args.epilogue);
    }

#pragma unroll
    for (int b = 0; b < (kIsSwiGlu ? 1 : kRowBlocks); ++b) {
      const int column = first_column + b * kHalfN;
#pragma unroll
      for (int chunk = 0; chunk * kChunk < kM; ++chunk) {
        const int n_rows = min(kChunk, kM - chunk * kChunk), row = first_row + chunk * kChunk;
        if (row >= args.m || column >= part.n || chunk % slice.split != slice.k_split) continue;
        float sums[kChunk / 2];
        const auto set_sums = [&](auto activation) {
#pragma unroll
          for (int j = 0; j < kChunk / 2; ++j) {
            const int at = (chunk * (kChunk / 2) + j) % (kM / 2);
            if (j * 2 >= n_rows) {
              sums[j] = 0;
            } else if constexpr (kIsSwiGlu) {
              sums[j] = activation(d[0][at]) * d[1][at];
            } else {
              sums[j] = d[b][at];
            }
          }
        };
        if constexpr (kIsSwiGlu) {
          visit_gate(args.epilogue, set_sums);
        } else {
          set_sums([](float sum) { return sum; });
        }
        out.store(sums, place.part, row, n_rows, column);
      }
    }
  }
  if (thread == 0) ptx::bulk_wait<0>();
  slice.meet_at_end();
#endif
}

}  // namespace minfer::cuda
