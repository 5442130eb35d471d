#pragma once

#include <algorithm>
#include <functional>

#include "kernels/cuda/check.h"
#include "kernels/cuda/gemm/hgemm.cuh"
#include "kernels/cuda/gemm/hgemm_launch.h"

// Launches hgemm_kernel for a plan.
namespace minfer::cuda {

template <typename T, typename Tile, HgemmKind kKind, typename Operand = T>
auto* kernel_of() {
  auto* const kernel = hgemm_kernel<T, Tile, kKind, Operand>;
  MINFER_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(sizeof(typename Tile::Shared))));
  return kernel;
}

// The most bytes of x that L2 can keep beside the data that streams through: each half of L2, 25 MB
// on an H100 and 30 MB on an H200, holds its own copy. kFewestReads: how often x must be read for
// that to pay off; the GEMMs of wo and w_down read it only twice.
constexpr int64_t kMostKeptBytes = int64_t{20} << 20;
constexpr int kFewestReads = 4;

// Whether L2 should keep the rows of x of a band of tiles.
inline bool keeps_x(const HgemmCut& cut, int band, int clusters, int tile_m, int k) {
  if (!cut.is_paired) return false;
  const int64_t pairs = std::min(band / 2, cut.tiles_m);
  return pairs * cut.tiles_n >= kFewestReads * clusters &&
         pairs * 2 * tile_m * k * 2 <= kMostKeptBytes;
}

template <typename T, typename Tile, HgemmKind kKind, typename Operand = T>
void launch_kind(cudaStream_t stream, GemmArgs& args, const GemmPlan& plan) {
  constexpr int kOut = Tile::template kOut<kKind>;
  HgemmMaps maps{};
  HgemmCut cut = cut_gemm(args, plan, Tile::kM, kOut);
  const auto map_rows = [&](CUtensorMap& whole, CUtensorMap& tail, const void* data, int rows,
                            int box_rows) {
    whole = make_map(data, args.dtype, rows, args.k, box_rows);
    if (rows % box_rows != 0) tail = make_map(data, args.dtype, rows, args.k, rows % box_rows);
  };
  map_rows(maps.x, maps.x_tail, args.x, args.m, Tile::kM);
  for (int i = 0; i < args.n_parts; ++i) {
    const GemmArgs::Part& part = args.part[i];
    if (plan.is_paired) {
      maps.w[i] = make_map(part.w, args.dtype, part.n, args.k, Tile::kN / 2);
    } else {
      map_rows(maps.w[i], maps.w_tail[i], part.w, part.n, kOut);
    }
    if (i >= args.n_tiled_parts()) continue;
    const DType out_dtype = args.out_is_f32 ? DType::F32 : args.dtype;
    cut.out_by_map[i] = stores_by_map(part.out, bytes_of(out_dtype, part.n));
    if (!cut.out_by_map[i]) continue;
    if (part.pages != nullptr) {
      const auto map_of_pages = [&](int64_t n_rows) {
        return make_heads_map(part.out, n_rows, int64_t{part.n_pages} * (part.n / kFusedHeadDim),
                              kFusedHeadDim, kPagePositions * kFusedHeadDim, kBoxRows);
      };
      maps.out[i] = map_of_pages(kPagePositions);
      maps.out_last[i] = map_of_pages((part.pos + args.m - 1) % kPagePositions + 1);
      continue;
    }
    maps.out[i] = make_map(part.out, out_dtype, args.m, part.n, 64);
    if (kOut % 64 == 32 && !args.out_is_f32) {
      maps.out_half[i] = make_map(part.out, out_dtype, args.m, part.n, 64, 64);
    }
  }
  const int cluster = plan.blocks_of_cluster(), clusters = clusters_for(plan, cut);
  const bool all_by_map =
      kIsCheckable ||
      std::all_of(cut.out_by_map, cut.out_by_map + args.n_tiled_parts(), std::identity());
  MINFER_CHECK(kKind != HgemmKind::Heads || all_by_map, "hgemm: heads that begin anywhere");
  cut.holds = cut.tiles_m * cut.tiles_n > clusters && all_by_map &&
              ceil_div(args.k, kStepK) >= Tile::template kHeldBoxes<kKind>;
  cut.keeps_x = keeps_x(cut, Tile::kBand, clusters, Tile::kM, args.k);
  ClusterLaunch launch(clusters * cluster, Tile::kThreads, sizeof(typename Tile::Shared), cluster,
                       stream);
  MINFER_CUDA_CHECK(
      cudaLaunchKernelEx(launch.config(), kernel_of<T, Tile, kKind, Operand>(), maps, args, cut));
}

}  // namespace minfer::cuda
