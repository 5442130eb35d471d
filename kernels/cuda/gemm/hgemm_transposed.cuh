#pragma once

#include "kernels/cuda/gemm/hgemm.cuh"

namespace minfer::cuda {

// kTokens rows of x, 64 weight rows for each of kBlocks blocks of each warpgroup. kStagedRows rows
// of out are staged at once: fewer where that leaves room for a stage more.
template <int kWarpgroupsOfTile, int kBlocks, int kTokens, int kDepth, int kStagedRows = 64>
struct TransposedTile {
  static constexpr int kWarpgroups = kWarpgroupsOfTile;  // that multiply
  static constexpr int kRowBlocks = kBlocks;
  static constexpr int kM = kTokens, kN = 64 * kWarpgroups * kRowBlocks, kStages = kDepth;
  static constexpr int kChunk = kStagedRows, kRest = kM % kChunk;
  static constexpr int kHalfN = kN / 2;  // weight rows of a box
  static constexpr int kBand = 16;       // see place_of
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
  static_assert(kChunk % 8 == 0 && kRest > 0);  // buffers begin at 1024 bytes; boxes have rows
  // Whether a cluster can share the rows of out, in chunks, with its partial sums in the ring.
  static constexpr bool kCanSplit = kRowBlocks == 1;
  static_assert(!kCanSplit || kWarpgroups * 64 * kM * 4 <= kStages * (kXBytes + kWBytes));
};
using Tile104x256 = TransposedTile<2, 2, 104, 4>;
using Tile136x256 = TransposedTile<2, 2, 136, 4, 48>;
using Tile152x128 = TransposedTile<2, 1, 152, 5>;
using Tile152x192 = TransposedTile<3, 1, 152, 4>;
using Tile200x128 = TransposedTile<2, 1, 200, 4>;

// x loads kM rows, x_tail those of the last tile; w half a tile's. out stores kChunk rows of 128
// bytes, out_rest the last kRest of a tile.
struct TransposedMaps {
  CUtensorMap x, x_tail, w[kMaxGemmParts], out[kMaxGemmParts], out_rest[kMaxGemmParts];
};
struct TransposedCut {
  int tiles_m, tiles_n;  // along m of a block, or of pairs of them
  int split;
  bool is_paired;
  bool out_by_map[kMaxGemmParts];
};

// out_iT = epilogue(w_i xT + bias_i) for the parts i; see Epilogue
//
// As hgemm_kernel, but the rows of wgmma's product are weights, of which there are whole tiles, and
// its columns are the rows of x: their tile may be any multiple of 8, so that a number of them that
// is no multiple of 64 fills its tiles nearly.
//
//   x, w      [m, k], [n_i, k] T, rows of whole 16 bytes
//   out       [m, n_i] T or F32
//   launch    as hgemm_kernel, kM x kN sums a tile, but all of them leave at its end; with split >
//   1
//             each block finishes some rows
//   maths     as hgemm_kernel: a sum has the same bits, of as many parts of k
//   moves     2 (m k + n k) bytes and out; 2 m n k flops, by which it is bound. Sums are turned
//             over by stmatrix on their way to shared memory
template <typename T, typename Tile, HgemmKind kKind>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    hgemm_transposed_kernel(const __grid_constant__ TransposedMaps maps,
                            const __grid_constant__ GemmArgs args,
                            const __grid_constant__ TransposedCut cut) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kM = Tile::kM, kN = Tile::kN, kHalfN = Tile::kHalfN, kStages = Tile::kStages;
  constexpr int kWarpgroups = Tile::kWarpgroups, kRowBlocks = Tile::kRowBlocks;
  constexpr bool kIsSwiGlu = kKind == HgemmKind::SwiGlu;
  static_assert(kKind != HgemmKind::Gelu && (!kIsSwiGlu || kRowBlocks == 2));
  constexpr int kOut = kIsSwiGlu ? kHalfN : kN;  // columns of out
  constexpr int kRowBytes = kStepK * 2, kChunk = Tile::kChunk;
  extern __shared__ __align__(1024) uint8_t raw[];
  auto& s = *reinterpret_cast<typename Tile::Shared*>(raw);
  const int warpgroup = ptx::warpgroup_index();
  const int thread = static_cast<int>(threadIdx.x) % 128;

  const int split = Tile::kCanSplit ? cut.split : 1;
  const bool is_paired = cut.is_paired;
  const int cluster = is_paired ? 2 : split, rank = cluster > 1 ? ptx::cluster_rank() : 0;

  begin_product<Tile>(s, maps, is_paired ? 2 : 1);

  const int n_tiles = cut.tiles_m * cut.tiles_n;
  const int first = static_cast<int>(blockIdx.x) / cluster;
  const int stride = static_cast<int>(gridDim.x) / cluster;
  const int k_steps = (args.k + kStepK - 1) / kStepK, part_of_k = split > 1 ? rank : 0;
  const int k_begin = k_steps * part_of_k / split, k_end = k_steps * (part_of_k + 1) / split;
  struct Place {
    int part, row, column;  // of x and of out
  };
  const auto place_at = [&](int tile) {
    const GemmPlace at =
        place_of<Tile::kBand>(args, tile, stride, cut.tiles_m, cut.tiles_n, is_paired, rank);
    return Place{at.part, at.row_tile * kM, at.column_tile * kOut};
  };
  int slot = 0, parity = 0;
  const auto next_slot = [&] { advance<kStages>(slot, parity); };

  if (warpgroup == 0) {
    ptx::shrink_registers<kWarpgroups == 3 ? 32 : 40>();
    if (thread == 0) {
      for (int tile = first; tile < n_tiles; tile += stride) {
        const Place place = place_at(tile);
        // None is left for the second block of the last pair, where tiles are odd.
        const int rows_left = max(0, args.m - place.row);
        const CUtensorMap* const x_map = rows_left >= kM ? &maps.x : &maps.x_tail;
        // Half of the weights may lie behind the last: its place keeps what it held before.
        const int n_halves = kIsSwiGlu || place.column + kHalfN < args.part[place.part].n ? 2 : 1;
        const int n_bytes = (min(kM, rows_left) + n_halves * kHalfN) * kRowBytes;
        for (int step = k_begin; step < k_end; ++step) {
          ptx::mbarrier_wait(s.empty + slot, parity ^ 1);
          ptx::mbarrier_expect(s.full + slot, n_bytes);
          if (rows_left > 0) {
            ptx::tensor_load(s.x[slot], x_map, s.full + slot, step * kStepK, place.row);
          }
          for (int half = 0; half < n_halves; ++half) {
            uint8_t* const to = s.w[slot] + half * kHalfN * kRowBytes;
            const CUtensorMap* const w_map = maps.w + (kIsSwiGlu ? half : place.part);
            const int column = place.column + (kIsSwiGlu ? 0 : half * kHalfN);
            if (!is_paired) {
              ptx::tensor_load(to, w_map, s.full + slot, step * kStepK, column);
            } else if (half == rank) {
              ptx::tensor_load_to_both(to, w_map, s.full + slot, step * kStepK, column);
            }
          }
          next_slot();
        }
      }
    }
    __syncwarp();
    if (split > 1) ptx::cluster_barrier();  // as often as the others
    if (cluster > 1) ptx::cluster_barrier();
    return;
  }

  ptx::grow_registers<kWarpgroups == 3 ? 160 : 232>();
  const int consumer = warpgroup - 1, warp = thread / 32, lane = thread % 32;
  const auto release = [&](int read_slot) { release_slot(s.empty + read_slot, is_paired); };
  int turn = 0;  // of the two staging buffers, of which F32 takes both
  const bool out_is_f32 = !kIsSwiGlu && args.out_is_f32;
  float d[kRowBlocks][kM / 2];  // of 64 weight rows each, kHalfN rows apart
  for (int tile = first; tile < n_tiles; tile += stride) {
    const Place place = place_at(tile);
    const GemmArgs::Part& part = args.part[place.part];
    const int first_column = place.column + consumer * 64;
    const bool by_map = cut.out_by_map[place.part];

    // Without columns, or rows, only keeps pace with the ring: nothing else keeps its warps
    // together, and one that is two rounds late would wait forever.
    const bool is_there = first_column < part.n && place.row < args.m;
    if (!is_there) {
      for (int step = k_begin; step < k_end; ++step) {
        ptx::mbarrier_wait(s.full + slot, parity);
        ptx::named_barrier(1 + consumer, 128);
        release(slot);
        next_slot();
      }
      if (split == 1) continue;
    }
    int previous = -1;
    for (int step = is_there ? k_begin : k_end; step < k_end; ++step) {
      ptx::mbarrier_wait(s.full + slot, parity);
      const uint64_t w_tile = ptx::wgmma_tile(s.w[slot] + consumer * 64 * kRowBytes);
      const uint64_t x_tile = ptx::wgmma_tile(s.x[slot]);
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < kStepK / 16; ++i) {
#pragma unroll
        for (int b = 0; b < kRowBlocks; ++b) {
          ptx::wgmma(d[b], w_tile + b * (kHalfN * kRowBytes / 16) + 2 * i, x_tile + 2 * i,
                     step > k_begin || i > 0, T{});
        }
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();  // one step stays under way; the one before it has read its slot
      if (previous >= 0) release(previous);
      previous = slot;
      next_slot();
    }
    ptx::wgmma_wait<0>();
    if (previous >= 0) release(previous);

    if constexpr (Tile::kCanSplit) {
      if (split > 1) {
        // Chunk c of the rows of out is finished by rank c % split.
        constexpr int kChunks = (kM + kChunk - 1) / kChunk;
        add_parts_of_k<kWarpgroups, kChunk / 2, kChunks>(d[0], raw, consumer, split, rank);
      }
    }

    // A thread's sums are those of two weight rows of each block.
#pragma unroll
    for (int b = 0; b < kRowBlocks; ++b) {
      const GemmArgs::Part& of = kIsSwiGlu ? args.part[b] : part;
      if (of.bias == nullptr) continue;
      const int at = first_column + (kIsSwiGlu ? 0 : b * kHalfN) + warp * 16 + lane / 4;
      const float biases[2] = {bias_at<T>(of, at), bias_at<T>(of, at + 8)};
#pragma unroll
      for (int j = 0; j < kM / 2; ++j) d[b][j] += biases[j / 2 % 2];
    }

    const auto send_staging = [&](const CUtensorMap& map, const uint8_t* staging, int row,
                                  int n_rows, int column) {
      if (column >= part.n) return;
      if (!by_map) {
        send_elements<T, 128>(args, part, out_is_f32, staging, row, n_rows, column);
      } else if (thread == 0) {
        send_box(args, part, map, out_is_f32, staging, row, column);
      }
    };

#pragma unroll
    for (int b = 0; b < (kIsSwiGlu ? 1 : kRowBlocks); ++b) {
      const int column = first_column + b * kHalfN;
#pragma unroll
      for (int chunk = 0; chunk * kChunk < kM; ++chunk) {
        const int n_rows = min(kChunk, kM - chunk * kChunk), row = place.row + chunk * kChunk;
        const CUtensorMap& map = (n_rows == kChunk ? maps.out : maps.out_rest)[place.part];
        if (row >= args.m || column >= part.n || chunk % split != part_of_k) continue;

        float sums[kChunk / 2];  // as d: of each 8 rows of out two, of two columns
#pragma unroll
        for (int j = 0; j < kChunk / 2; ++j) {
          const int at = (chunk * (kChunk / 2) + j) % (kM / 2);
          if (j * 2 >= n_rows) {
            sums[j] = 0;
          } else if constexpr (kIsSwiGlu) {
            sums[j] = silu(d[0][at]) * d[1][at];
          } else {
            sums[j] = d[b][at];
          }
        }
        if (thread == 0) {
          if (out_is_f32) {
            ptx::bulk_wait_read<0>();
          } else {
            ptx::bulk_wait_read<1>();
          }
        }
        ptx::named_barrier(1 + consumer, 128);
        if (out_is_f32) {  // warps 0 and 1 have the first 32 columns
          uint8_t* const staging = s.staging[consumer][warp / 2];
#pragma unroll
          for (int j = 0; j < kChunk / 2; ++j) {
            if (j * 2 >= n_rows) continue;
            const int r = j / 4 * 8 + lane % 4 * 2 + j % 2;
            const int byte = (warp % 2 * 16 + lane / 4 + j / 2 % 2 * 8) * 4;
            *reinterpret_cast<float*>(staging + staged_at<128>(r, byte / 16) + byte % 16) = sums[j];
          }
        } else {
          uint8_t* const staging = s.staging[consumer][turn];
#pragma unroll
          for (int j = 0; j < kChunk / 2; j += 4) {
            if (j * 2 >= n_rows) continue;
            const int r = j * 2 + lane % 8, at = warp * 2 + lane / 8 % 2;
            ptx::store_matrix_x2_transposed(staging + staged_at<128>(r, at),
                                            pack_pair<T>(sums[j], sums[j + 1]),
                                            pack_pair<T>(sums[j + 2], sums[j + 3]));
          }
        }
        ptx::fence_for_copy_engine();
        ptx::named_barrier(1 + consumer, 128);
        if (out_is_f32) {
          send_staging(map, s.staging[consumer][0], row, n_rows, column);
          send_staging(map, s.staging[consumer][1], row, n_rows, column + 32);
        } else {
          send_staging(map, s.staging[consumer][turn], row, n_rows, column);
          turn ^= 1;
        }
        if (thread == 0) ptx::bulk_commit();  // also without a copy: groups are counted
      }
    }
  }
  if (thread == 0) ptx::bulk_wait<0>();
  // Others may still read this block's partial sums, or write here.
  if (cluster > 1) ptx::cluster_barrier();
#endif
}

}  // namespace minfer::cuda
