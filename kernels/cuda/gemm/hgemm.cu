#include <algorithm>
#include <functional>
#include <type_traits>

#include "kernels/cuda/device.h"
#include "kernels/cuda/gemm/hgemm.cuh"
#include "kernels/cuda/gemm/hgemm_launch.h"

namespace minfer::cuda {
namespace {

template <typename T, typename Tile, HgemmKind kKind>
auto* kernel_of() {
  auto* const kernel = hgemm_kernel<T, Tile, kKind>;
  MINFER_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(sizeof(typename Tile::Shared))));
  return kernel;
}

GemmCard describe_card() {
  GemmCard card;
  int device = 0;
  MINFER_CUDA_CHECK(cudaGetDevice(&device));
  MINFER_CUDA_CHECK(cudaDeviceGetAttribute(&card.blocks, cudaDevAttrMultiProcessorCount, device));
  using Tile = Tile128x128;  // all tiles have one block an SM
  for (const int split : {2, 4}) {
    Launch launch(split, Tile::kThreads, sizeof(Tile::Shared), split, nullptr);
    launch.config()->numAttrs = 1;  // the cluster alone
    MINFER_CUDA_CHECK(cudaOccupancyMaxActiveClusters(
        split == 2 ? &card.clusters_of_2 : &card.clusters_of_4,
        kernel_of<__half, Tile, HgemmKind::Plain>(), launch.config()));
  }
  return card;
}

// Bytes of x that L2 can keep beside what passes through: its halves, of 25 MB each on an H100 and
// 30 on an H200, have both a copy. And how often they must be read for that to be worth it: wo and
// w_down read theirs twice.
constexpr int64_t kMostKeptBytes = int64_t{20} << 20;
constexpr int kFewestReads = 4;

// Whether L2 is to keep the rows of x of a band of tiles.
bool keeps_x(const HgemmCut& cut, int band, int clusters, int tile_m, int k) {
  if (!cut.is_paired) return false;
  const int64_t pairs = std::min(band / 2, cut.tiles_m);
  return pairs * cut.tiles_n >= kFewestReads * clusters &&
         pairs * 2 * tile_m * k * 2 <= kMostKeptBytes;
}

template <typename T, typename Tile, HgemmKind kKind>
void launch_kind(cudaStream_t stream, GemmArgs& args, const GemmPlan& plan) {
  constexpr int kOut = Tile::template kOut<kKind>;
  HgemmMaps maps{};
  HgemmCut cut = cut_product(args, plan, Tile::kM, kOut);
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
    if (part.head_stride != 0) {
      maps.out[i] = make_heads_map(part.out, args.m, part.n / kFusedHeadDim, kFusedHeadDim,
                                   part.head_stride, 64);
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
  Launch launch(clusters * cluster, Tile::kThreads, sizeof(typename Tile::Shared), cluster, stream);
  MINFER_CUDA_CHECK(
      cudaLaunchKernelEx(launch.config(), kernel_of<T, Tile, kKind>(), maps, args, cut));
}

template <typename T, typename Tile>
void launch_tile(cudaStream_t stream, GemmArgs& args, const GemmPlan& plan) {
  constexpr int kM = Tile::kM, kN = Tile::kN;
  switch (args.epilogue) {
    case Epilogue::Store:
    case Epilogue::Accumulate:
      if (args.angles != nullptr) {
        if constexpr (std::is_same_v<T, __half> && std::is_same_v<Tile, Tile128x256>) {
          return launch_kind<T, Tile, HgemmKind::Heads>(stream, args, plan);
        }
        break;
      }
      if constexpr (has_tile(kM, kN, Epilogue::Store)) {
        if (args.out_is_f32) return launch_kind<T, Tile, HgemmKind::Sums>(stream, args, plan);
        return launch_kind<T, Tile, HgemmKind::Plain>(stream, args, plan);
      }
      break;
    case Epilogue::SwiGlu:
      if constexpr (has_tile(kM, kN, Epilogue::SwiGlu)) {
        return launch_kind<T, Tile, HgemmKind::SwiGlu>(stream, args, plan);
      }
      break;
    case Epilogue::GeluErf:
    case Epilogue::GeluTanh:
      if constexpr (has_tile(kM, kN, Epilogue::GeluErf)) {
        return launch_kind<T, Tile, HgemmKind::Gelu>(stream, args, plan);
      }
      break;
  }
  MINFER_CHECK(false, "hgemm: epilogue ", int(args.epilogue), " in a tile of ", kM, " x ", kN);
}

}  // namespace

const GemmCard& gemm_card() {
  static const GemmCard card = describe_card();
  return card;
}

bool hgemm_takes(const GemmArgs& args) {
  // Else the kernel's body is empty.
  static const bool has_wgmma = runs_hopper_code(
      reinterpret_cast<const void*>(hgemm_kernel<__half, Tile128x128, HgemmKind::Plain>));
  bool aligned = whole_16_bytes(args.x, int64_t{args.k} * 2);
  for (int i = 0; i < args.n_parts; ++i) {
    aligned = aligned && whole_16_bytes(args.part[i].w, int64_t{args.k} * 2);
  }
  return has_wgmma && aligned;
}

void hgemm_as(cudaStream_t stream, GemmArgs args, const GemmPlan& plan) {
  MINFER_CHECK(plan_fits(args, plan), "hgemm: tile ", int(plan.tile), ", k ", args.k, " in ",
               plan.split, " parts", plan.is_paired ? ", paired" : "", ", epilogue ",
               int(args.epilogue));
  visit_half(args.dtype, [&]<typename T>() {
    switch (plan.tile) {
      case GemmTile::k64x96:
        return launch_tile<T, Tile64x96>(stream, args, plan);
      case GemmTile::k64x128:
        return launch_tile<T, Tile64x128>(stream, args, plan);
      case GemmTile::k64x176:
        return launch_tile<T, Tile64x176>(stream, args, plan);
      case GemmTile::k128x96:
        return launch_tile<T, Tile128x96>(stream, args, plan);
      case GemmTile::k128x128:
        return launch_tile<T, Tile128x128>(stream, args, plan);
      case GemmTile::k128x192:
        return launch_tile<T, Tile128x192>(stream, args, plan);
      case GemmTile::k128x224:
        return launch_tile<T, Tile128x224>(stream, args, plan);
      case GemmTile::k128x256:
        return launch_tile<T, Tile128x256>(stream, args, plan);
      case GemmTile::k256x192:
        return launch_tile<T, Tile256x192>(stream, args, plan);
      case GemmTile::k104x256:
      case GemmTile::k136x256:
      case GemmTile::k152x128:
      case GemmTile::k152x192:
      case GemmTile::k200x128:
        return hgemm_transposed(stream, args, plan);
    }
  });
}

GemmPlan hgemm_plan(const GemmArgs& args) { return plan_gemm(args, gemm_card()); }

void hgemm(cudaStream_t stream, GemmArgs args) { hgemm_as(stream, args, hgemm_plan(args)); }

}  // namespace minfer::cuda
