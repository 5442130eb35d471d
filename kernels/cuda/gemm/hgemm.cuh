#pragma once

#include <cstdint>

#include "kernels/cuda/gemm/epilogue.cuh"
#include "kernels/cuda/gemm/tma.cuh"
#include "kernels/cuda/gemm/wgmma.cuh"

namespace minfer::cuda {
constexpr int kStepK = 64;                         // columns of k in a stage: rows of 128 bytes
[[maybe_unused]] constexpr int kBandOfTiles = 16;  // see place_of
constexpr int kStagingBytes = 8192;                // 64 rows of 128 bytes

template <int kWarpgroupsOfTile, int kColumns, int kDepth>
struct HgemmTile {
  static constexpr int kWarpgroups = kWarpgroupsOfTile;  // that multiply, 64 rows each
  static constexpr int kM = 64 * kWarpgroups, kN = kColumns, kStages = kDepth;
  static constexpr int kThreads = 128 * (kWarpgroups + 1);
  static constexpr int kXBytes = kM * kStepK * 2, kWBytes = kN * kStepK * 2;
  struct alignas(1024) Shared {
    uint8_t x[kStages][kXBytes];
    uint8_t w[kStages][kWBytes];
    uint8_t staging[kWarpgroups][2][kStagingBytes];
    uint64_t full[kStages], empty[kStages];
  };
  static_assert(sizeof(Shared) <= 232448);
  static_assert(kM * kN * 4 <= kStages * (kXBytes + kWBytes), "partial sums lie in the ring");
};
using Tile64x128 = HgemmTile<1, 128, 8>;
using Tile128x128 = HgemmTile<2, 128, 6>;
using Tile128x192 = HgemmTile<2, 192, 4>;
using Tile128x256 = HgemmTile<2, 256, 4>;

struct HgemmMaps {
  CUtensorMap x, w[kMaxGemmParts], out[kMaxGemmParts];
};
struct HgemmCut {
  int tiles_m, tiles_n, columns;  // columns of out in a tile
  int split;
  bool out_by_map[kMaxGemmParts];
};

// out_i = epilogue(x w_iT + bias_i) for the parts i; see Epilogue
//
//   x, w      [m, k], [n_i, k] T, rows of whole 16 bytes
//   out       [m, n_i] T or F32
//   launch    persistent: a block takes every gridDim-th tile of kM x kN sums. Warpgroup 0 brings x
//             and w by TMA into a ring of kStages x 64 columns of k, 128-byte rows swizzled by 128
//             bytes; each other one multiplies 64 rows by wgmma. With split > 1 the blocks of a
//             cluster take a part of k each, of one tile, and each finishes some of its columns
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
  const int rank = cut.split > 1 ? ptx::cluster_rank() : 0;

  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(s.full + i, 1);
      ptx::mbarrier_init(s.empty + i, kWarpgroups);
    }
    ptx::mbarrier_init_fence();
    ptx::prefetch_tensor_map(&maps.x);
    ptx::prefetch_tensor_map(&maps.w[0]);
  }
  __syncthreads();
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();

  const int n_tiles = cut.tiles_m * cut.tiles_n;
  const int first = static_cast<int>(blockIdx.x) / cut.split;
  const int stride = static_cast<int>(gridDim.x) / cut.split;
  const int k_steps = (args.k + kStepK - 1) / kStepK;
  const int k_begin = k_steps * rank / cut.split, k_end = k_steps * (rank + 1) / cut.split;
  int slot = 0, parity = 0;
  const auto next_slot = [&] {
    if (++slot == kStages) {
      slot = 0;
      parity ^= 1;
    }
  };

  if (warpgroup == 0) {
    if constexpr (kWarpgroups == 2) ptx::shrink_registers<40>();
    if (thread == 0) {
      for (int tile = first; tile < n_tiles; tile += stride) {
        const GemmPlace place = place_of<kBandOfTiles>(args, tile, cut.tiles_m, cut.tiles_n);
        const int row = place.row_tile * Tile::kM, column = place.column_tile * cut.columns;
        for (int step = k_begin; step < k_end; ++step) {
          ptx::mbarrier_wait(s.empty + slot, parity ^ 1);
          ptx::mbarrier_expect(s.full + slot, Tile::kXBytes + Tile::kWBytes);
          ptx::tensor_load(s.x[slot], &maps.x, s.full + slot, step * kStepK, row);
          if (is_swiglu) {
            ptx::tensor_load(s.w[slot], &maps.w[0], s.full + slot, step * kStepK, column);
            ptx::tensor_load(s.w[slot] + Tile::kWBytes / 2, &maps.w[1], s.full + slot,
                             step * kStepK, column);
          } else {
            ptx::tensor_load(s.w[slot], &maps.w[place.part], s.full + slot, step * kStepK, column);
          }
          next_slot();
        }
      }
    }
    __syncwarp();
    if (cut.split > 1) {  // as often as the others
      ptx::cluster_barrier();
      ptx::cluster_barrier();
    }
    return;
  }

  if constexpr (kWarpgroups == 2) ptx::grow_registers<232>();
  const int consumer = warpgroup - 1, warp = thread / 32, lane = thread % 32;
  int turn = 0;  // of the two staging buffers
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
      if (previous >= 0 && thread == 0) ptx::mbarrier_arrive(s.empty + previous);
      previous = slot;
      next_slot();
    }
    ptx::wgmma_wait<0>();
    if (thread == 0) ptx::mbarrier_arrive(s.empty + previous);

    // Blocks of 64 columns of out; SwiGlu has its gates in the lower half of d.
    const int n_blocks = is_swiglu ? kN / 128 : kN / 64;
    if (cut.split > 1) {
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

    const GemmPlace place = place_of<kBandOfTiles>(args, tile, cut.tiles_m, cut.tiles_n);
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
    const auto send_staging = [&](int first_column) {
      const uint8_t* const staging = s.staging[consumer][turn];
      turn ^= 1;
      ptx::fence_for_copy_engine();
      ptx::named_barrier(1 + consumer, 128);
      if (by_map) {
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
      const int width = args.out_is_f32 ? 32 : 64, size = args.out_is_f32 ? 4 : 2;
      for (int i = thread; i < 64 * width; i += 128) {
        const int r = i / width, c = i % width;
        if (row + r >= args.m || first_column + c >= part.n) continue;
        const int byte = c * size;
        const uint8_t* const from = staging + r * 128 + ((byte / 16 ^ r % 8) * 16) + byte % 16;
        const float sum = args.out_is_f32 ? *reinterpret_cast<const float*>(from)
                                          : to_float(*reinterpret_cast<const T*>(from));
        put<T>(args, part.out, int64_t{row + r} * part.n + first_column + c, sum);
      }
    };

#pragma unroll
    for (int block = 0; block < kN / 64; ++block) {
      const int block_column = column + block * 64;
      if (block >= n_blocks || block % cut.split != rank) continue;
      if (row >= args.m || block_column >= part.n) continue;

      float sums[32];  // as d: two columns of two rows for each 8 columns
#pragma unroll
      for (int j = 0; j < 32; ++j) sums[j] = d[block * 32 + j];
      if (part.bias != nullptr) {
#pragma unroll
        for (int j = 0; j < 32; ++j) {
          sums[j] += bias_at<T>(part, block_column + j / 4 * 8 + lane % 4 * 2 + j % 2);
        }
      }
      if constexpr (kN % 128 == 0) {
        if (is_swiglu) {
#pragma unroll
          for (int j = 0; j < 32; ++j) {
            float up = d[(kN / 4 + block * 32 + j) % (kN / 2)];
            up += bias_at<T>(args.part[1], block_column + j / 4 * 8 + lane % 4 * 2 + j % 2);
            sums[j] = silu(sums[j]) * up;
          }
        }
      }
      activate(sums, args.epilogue);

      if (args.out_is_f32) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {  // 32 columns each
          if (block_column + half * 32 >= part.n) continue;
          uint8_t* const staging = acquire_staging();
#pragma unroll
          for (int j = 0; j < 8; ++j) {  // two columns of one row
            const int r = warp * 16 + lane / 4 + j % 2 * 8;
            const int chunk = j / 2 * 2 + lane % 4 / 2;  // of 16 bytes
            const float* const pair = sums + half * 16 + j * 2;
            *reinterpret_cast<float2*>(staging + r * 128 + ((chunk ^ r % 8) * 16) + lane % 2 * 8) =
                make_float2(pair[0], pair[1]);
          }
          send_staging(block_column + half * 32);
        }
      } else {
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
        send_staging(block_column);
      }
    }
  }
  if (thread == 0) ptx::bulk_wait<0>();
  if (cut.split > 1) ptx::cluster_barrier();  // others may still read this block's partial sums
#endif
}

}  // namespace minfer::cuda
