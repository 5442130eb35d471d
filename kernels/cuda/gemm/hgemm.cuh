#pragma once

#include <cstdint>

#include "kernels/cuda/gemm/epilogue.cuh"
#include "kernels/cuda/gemm/tma.cuh"
#include "kernels/cuda/gemm/wgmma.cuh"

namespace minfer::cuda {
constexpr int kStepK = 64;           // columns of k in a stage: rows of 128 bytes
constexpr int kBandOfTiles = 16;     // see place_of
constexpr int kStagingBytes = 8192;  // 64 rows of 128 bytes

template <int kWarpgroupsOfTile, int kColumns, int kDepth>
struct HgemmTile {
  static constexpr int kWarpgroups = kWarpgroupsOfTile;  // that multiply, 64 rows each
  static constexpr int kM = 64 * kWarpgroups, kN = kColumns, kStages = kDepth;
  static constexpr int kThreads = 128 * (kWarpgroups + 1);
  static constexpr int kWRows = kN / 2;  // of a box: two to a tile
  static constexpr int kXBytes = kM * kStepK * 2, kWBytes = kN * kStepK * 2;
  struct alignas(1024) Shared {
    uint8_t x[kStages][kXBytes];
    uint8_t w[kStages][kWBytes];
    uint8_t staging[kWarpgroups][2][kStagingBytes];
    uint64_t full[kStages], empty[kStages];
  };
  static_assert(sizeof(Shared) <= 232448);
  static_assert(kM * kN * 4 <= kStages * (kXBytes + kWBytes), "partial sums lie in the ring");
  static_assert(kWBytes / 2 % 1024 == 0, "a box of w begins with a whole pattern of the swizzle");
};
using Tile64x32 = HgemmTile<1, 32, 16>;
using Tile64x96 = HgemmTile<1, 96, 10>;
using Tile64x128 = HgemmTile<1, 128, 8>;
using Tile64x192 = HgemmTile<1, 192, 6>;
using Tile128x96 = HgemmTile<2, 96, 6>;
using Tile128x128 = HgemmTile<2, 128, 6>;
using Tile128x192 = HgemmTile<2, 192, 4>;
using Tile128x224 = HgemmTile<2, 224, 4>;
using Tile128x256 = HgemmTile<2, 256, 4>;

// Boxes of 64 rows of x and kWRows of w. Rows that are not there cost the copy engine more than
// those that are: so the last rows have boxes of their own, which end where the matrix ends.
struct HgemmMaps {
  CUtensorMap x, x_tail, w[kMaxGemmParts], w_tail[kMaxGemmParts], out[kMaxGemmParts];
};
struct HgemmCut {
  int tiles_m, tiles_n, columns;  // columns of out in a tile
  int split;
  bool is_paired;  // tiles_m counts pairs
  bool out_by_map[kMaxGemmParts];
};

// out_i = epilogue(x w_iT + bias_i) for the parts i; see Epilogue
//
//   x, w      [m, k], [n_i, k] T, rows of whole 16 bytes
//   out       [m, n_i] T or F32
//   launch    persistent: a block takes every gridDim-th tile of kM x kN sums. Warpgroup 0 brings x
//             and w by TMA into a ring of kStages x 64 columns of k, 128-byte rows swizzled by 128
//             bytes; each other one multiplies 64 rows by wgmma. Paired: the two blocks of a
//             cluster have two tiles of the same w, of which each brings one half to both. With
//             split > 1 the blocks of a cluster take a part of k each, of one tile, and each
//             finishes some of its columns
//   maths     f32 sums over k in order; with split, parts of k summed apart and then in order; one
//             rounding at the store. Accumulate by TMA adds each sum once: one rounding, one order
//   moves     2 (m k + n k) bytes and out; 2 m n k flops, by which it is bound
//   source    structure as in NVIDIA's CUTLASS, "warp-specialized persistent" kernels
template <typename T, typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    hgemm_kernel(const __grid_constant__ HgemmMaps maps, const __grid_constant__ GemmArgs args,
                 const __grid_constant__ HgemmCut cut) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kN = Tile::kN, kStages = Tile::kStages, kWarpgroups = Tile::kWarpgroups;
  extern __shared__ __align__(1024) uint8_t raw[];
  auto& s = *reinterpret_cast<typename Tile::Shared*>(raw);
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const bool is_swiglu = args.epilogue == Epilogue::SwiGlu;
  const bool is_paired = Tile::kWarpgroups == 2 && cut.is_paired;
  const int cluster = is_paired ? 2 : cut.split;
  const int rank = cluster > 1 ? ptx::cluster_rank() : 0;

  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(s.full + i, 1);
      ptx::mbarrier_init(s.empty + i, is_paired ? 2 * kWarpgroups : kWarpgroups);
    }
    ptx::mbarrier_init_fence();
    ptx::prefetch_tensor_map(&maps.x);
    ptx::prefetch_tensor_map(&maps.w[0]);
  }
  __syncthreads();
  if (is_paired) ptx::cluster_barrier();  // the other's barriers are ready
  ptx::let_successor_begin();

  const int n_tiles = cut.tiles_m * cut.tiles_n;
  const int first = static_cast<int>(blockIdx.x) / cluster;
  const int stride = static_cast<int>(gridDim.x) / cluster;
  const int k_steps = (args.k + kStepK - 1) / kStepK;
  const int part_of_k = is_paired ? 0 : rank;
  const int k_begin = k_steps * part_of_k / cut.split;
  const int k_end = k_steps * (part_of_k + 1) / cut.split;
  const auto place_at = [&](int tile) {
    const int band = is_paired ? kBandOfTiles / 2 : kBandOfTiles;
    GemmPlace place = place_of(args, tile, cut.tiles_m, cut.tiles_n, band);
    if (is_paired) place.row_tile = place.row_tile * 2 + rank;
    return place;
  };
  int slot = 0, parity = 0;
  const auto next_slot = [&] {
    if (++slot == kStages) {
      slot = 0;
      parity ^= 1;
    }
  };

  if (warpgroup == 0) {
    if constexpr (kWarpgroups == 2) ptx::shrink_registers<56>();
    if (thread == 0) {
      for (int tile = first; tile < n_tiles; tile += stride) {
        const GemmPlace place = place_at(tile);
        const int row = place.row_tile * Tile::kM, column = place.column_tile * cut.columns;
        const int n = args.part[place.part].n;
        const int x_rows = max(0, min(Tile::kM, args.m - row));
        int w_rows[2], bytes = x_rows * kStepK * 2;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int first_row = column + (is_swiglu ? 0 : half * Tile::kWRows);
          w_rows[half] = max(0, min(Tile::kWRows, n - first_row));
          bytes += w_rows[half] * kStepK * 2;
        }
        const auto load_w = [&](int step) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            if (w_rows[half] == 0 || (is_paired && half != rank)) continue;
            const int part = is_swiglu ? half : place.part;
            const CUtensorMap* const map =
                w_rows[half] == Tile::kWRows ? &maps.w[part] : &maps.w_tail[part];
            const int first_row = column + (is_swiglu ? 0 : half * Tile::kWRows);
            uint8_t* const to = s.w[slot] + half * (Tile::kWBytes / 2);
            if (is_paired) {
              ptx::tensor_load_multicast(to, map, s.full + slot, step * kStepK, first_row, 3);
            } else {
              ptx::tensor_load(to, map, s.full + slot, step * kStepK, first_row);
            }
          }
        };
        const auto load_x = [&](int step) {
#pragma unroll
          for (int i = 0; i < kWarpgroups; ++i) {
            if (i * 64 >= x_rows) continue;
            const CUtensorMap* const map = x_rows - i * 64 >= 64 ? &maps.x : &maps.x_tail;
            ptx::tensor_load(s.x[slot] + i * 64 * kStepK * 2, map, s.full + slot, step * kStepK,
                             row + i * 64);
          }
        };

        int begin = k_begin;
        if (tile == first) {  // the ring is empty: no waiting
          const int end = min(k_end, k_begin + kStages);
          if (!args.w_is_constant) ptx::wait_for_predecessor();
          for (slot = 0; slot < end - k_begin; ++slot) {
            ptx::mbarrier_expect(s.full + slot, bytes);
            load_w(k_begin + slot);
          }
          if (args.w_is_constant) ptx::wait_for_predecessor();
          for (slot = 0; begin < end; ++begin) {
            load_x(begin);
            next_slot();
          }
        }
        for (int step = begin; step < k_end; ++step) {
          ptx::mbarrier_wait(s.empty + slot, parity ^ 1);
          ptx::mbarrier_expect(s.full + slot, bytes);
          load_x(step);
          load_w(step);
          next_slot();
        }
      }
    }
    __syncwarp();
    if (cut.split > 1) ptx::cluster_barrier();  // as often as the others
    if (cluster > 1) ptx::cluster_barrier();
    return;
  }

  if constexpr (kWarpgroups == 2) ptx::grow_registers<224>();
  const int consumer = warpgroup - 1, warp = thread / 32, lane = thread % 32;
  int turn = 0;  // of the two staging buffers
  const auto release = [&](int used) {
    if (is_paired) {  // its w came from both
      if (thread < 2) {
        ptx::mbarrier_arrive_in_cluster(ptx::shared_address_in(s.empty + used, thread));
      }
    } else if (thread == 0) {
      ptx::mbarrier_arrive(s.empty + used);
    }
  };
  ptx::wait_for_predecessor();  // before a write
  float d[kN / 2];
  for (int tile = first; tile < n_tiles; tile += stride) {
    int previous = -1;
    for (int step = k_begin; step < k_end; ++step) {
      ptx::mbarrier_wait(s.full + slot, parity);
      const uint64_t x_tile = ptx::wgmma_tile(s.x[slot] + consumer * 64 * kStepK * 2);
      const uint64_t w_tile = ptx::wgmma_tile(s.w[slot]);
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < kStepK / 16; ++i) {
        ptx::wgmma(d, x_tile + 2 * i, w_tile + 2 * i, step > k_begin || i > 0, T{});
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();  // one step stays under way; the one before it has read its slot
      if (previous >= 0) release(previous);
      previous = slot;
      next_slot();
    }
    ptx::wgmma_wait<0>();
    release(previous);

    // Blocks of 64 columns of out, the last may be narrower; SwiGlu has its gates in the lower half
    // of d.
    const int n_blocks = (cut.columns + 63) / 64;
    if (kN % 64 == 0 && cut.split > 1) {
      // The ring is drained, and there is no next tile: it takes the partial sums, d[j] of a thread
      // at [j][thread]. Block b of the columns is finished by rank b % split.
      ptx::named_barrier(1 + kWarpgroups, 128 * kWarpgroups);
      auto* const partial = reinterpret_cast<float*>(raw) + consumer * 64 * kN + thread;
#pragma unroll
      for (int j = 0; j < kN / 2; ++j) partial[j * 128] = d[j];
      ptx::cluster_barrier();
#pragma unroll
      for (int group = 0; group < kN / 64; ++group) {
        if (group % n_blocks % cut.split != rank) continue;
#pragma unroll
        for (int j = 0; j < 32; ++j) d[group * 32 + j] = 0;
        for (int from = 0; from < cut.split; ++from) {
          const uint32_t other = ptx::shared_address_in(partial + group * 32 * 128, from);
#pragma unroll
          for (int j = 0; j < 32; ++j) d[group * 32 + j] += ptx::load_cluster(other + j * 128 * 4);
        }
      }
    }

    const GemmPlace place = place_at(tile);
    const GemmArgs::Part& part = args.part[place.part];
    const int row = place.row_tile * Tile::kM + consumer * 64;
    const int column = place.column_tile * cut.columns;
    const bool by_map = cut.out_by_map[place.part];

    // A staging buffer of 64 rows of 128 bytes, swizzled by 128 bytes, goes out as a box.
    const auto acquire_staging = [&]() -> uint8_t* {
      if (thread == 0) ptx::bulk_wait_read<1>();
      ptx::named_barrier(1 + consumer, 128);
      return s.staging[consumer][turn];
    };
    const auto send_staging = [&](int first_column, int width) {
      const uint8_t* const staging = s.staging[consumer][turn];
      turn ^= 1;
      ptx::fence_for_copy_engine();
      ptx::named_barrier(1 + consumer, 128);
      if (by_map && width * (args.out_is_f32 ? 4 : 2) == 128) {
        if (thread == 0) {
          if (args.epilogue == Epilogue::Accumulate) {
            ptx::tensor_add(&maps.out[place.part], staging, first_column, row);
          } else {
            ptx::tensor_store(&maps.out[place.part], staging, first_column, row);
          }
          ptx::bulk_commit();
        }
        return;
      }
      if (by_map) {  // narrower than a box: 16 bytes at a time
        const int chunks = width / 8;
        for (int i = thread; i < 64 * chunks; i += 128) {
          const int r = i / chunks, chunk = i % chunks, c = first_column + chunk * 8;
          if (row + r >= args.m || c >= part.n) continue;
          *reinterpret_cast<uint4*>(static_cast<T*>(part.out) + int64_t{row + r} * part.n + c) =
              *reinterpret_cast<const uint4*>(staging + r * 128 + ((chunk ^ r % 8) * 16));
        }
        if (thread == 0) ptx::bulk_commit();  // of nothing: a group for each buffer
        return;
      }
      const int size = args.out_is_f32 ? 4 : 2;
      for (int i = thread; i < 64 * width; i += 128) {
        const int r = i / width, c = i % width;
        if (row + r >= args.m || first_column + c >= part.n) continue;
        const int byte = c * size;
        const uint8_t* const from = staging + r * 128 + ((byte / 16 ^ r % 8) * 16) + byte % 16;
        const float sum = args.out_is_f32 ? *reinterpret_cast<const float*>(from)
                                          : to_float(*reinterpret_cast<const T*>(from));
        put<T>(args, part.out, int64_t{row + r} * part.n + first_column + c, sum);
      }
      if (thread == 0) ptx::bulk_commit();  // of nothing: a group for each buffer
    };

    // As d: two columns of two rows for each 8 columns.
    const auto add_bias = [&](float(&sums)[32], const GemmArgs::Part& of, int first_column) {
      if (of.bias == nullptr) return;
#pragma unroll
      for (int j = 0; j < 32; j += 4) {
        const int at = first_column + j * 2 + lane % 4 * 2;
        const float left = bias_at<T>(of, at), right = bias_at<T>(of, at + 1);
        sums[j] += left;
        sums[j + 1] += right;
        sums[j + 2] += left;
        sums[j + 3] += right;
      }
    };
    const auto send = [&](const float(&sums)[32], int block) {
      const int block_column = column + block * 64, width = min(64, cut.columns - block * 64);
      if (args.out_is_f32) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {  // 32 columns each
          if (half * 32 >= width || block_column + half * 32 >= part.n) continue;
          uint8_t* const staging = acquire_staging();
#pragma unroll
          for (int j = 0; j < 8; ++j) {  // two columns of one row
            const int r = warp * 16 + lane / 4 + j % 2 * 8;
            const int chunk = j / 2 * 2 + lane % 4 / 2;  // of 16 bytes
            const float* const pair = sums + half * 16 + j * 2;
            *reinterpret_cast<float2*>(staging + r * 128 + ((chunk ^ r % 8) * 16) + lane % 2 * 8) =
                make_float2(pair[0], pair[1]);
          }
          send_staging(block_column + half * 32, 32);
        }
        return;
      }
      uint8_t* const staging = acquire_staging();
#pragma unroll
      for (int j = 0; j < 4; ++j) {  // 16 columns: rows 0-7 and 8-15 of both halves of them
        uint32_t packed[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          packed[i] = pack_pair<T>(sums[j * 8 + i * 2], sums[j * 8 + i * 2 + 1]);
        }
        const int r = warp * 16 + lane % 16, chunk = j * 2 + lane / 16;
        ptx::store_matrix_x4(staging + r * 128 + ((chunk ^ r % 8) * 16), packed[0], packed[1],
                             packed[2], packed[3]);
      }
      send_staging(block_column, width);
    };
    const auto is_mine = [&](int block) {
      return block < n_blocks && (cut.split == 1 || block % cut.split == rank) && row < args.m &&
             column + block * 64 < part.n;
    };

    constexpr int kBlocks = (kN + 63) / 64;
    float sums[32];
    if (args.epilogue == Epilogue::Store || args.epilogue == Epilogue::Accumulate) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        if (!is_mine(block)) continue;
#pragma unroll
        for (int j = 0; j < 32; ++j) sums[j] = d[(block * 32 + j) % (kN / 2)];
        add_bias(sums, part, column + block * 64);
        send(sums, block);
      }
      continue;
    }
    // One copy of the code for all blocks, as it is long: fetching instructions would take the
    // time.
#pragma unroll 1
    for (int block = 0; block < n_blocks; ++block) {
      if (is_mine(block)) {
        const int block_column = column + block * 64;
#pragma unroll
        for (int j = 0; j < 32; ++j) sums[j] = d[j % (kN / 2)];
        add_bias(sums, part, block_column);
        if (is_swiglu) {
          float up[32];
#pragma unroll
          for (int j = 0; j < 32; ++j) up[j] = d[(kN / 4 + j) % (kN / 2)];
          add_bias(up, args.part[1], block_column);
#pragma unroll
          for (int j = 0; j < 32; ++j) sums[j] = silu(sums[j]) * up[j];
        } else {
          activate(sums, args.epilogue);
        }
        send(sums, block);
      }
#pragma unroll
      for (int j = 0; j + 32 < kN / 2; ++j) d[j] = d[j + 32];  // the next block comes down
    }
  }
  if (thread == 0) ptx::bulk_wait<0>();
  if (cluster > 1) ptx::cluster_barrier();  // others may still use this block's shared memory
#endif
}

}  // namespace minfer::cuda
