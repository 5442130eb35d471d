#include <type_traits>

#include "kernels/cuda/device.h"
#include "kernels/cuda/gemm/hgemm_cut.cuh"

namespace minfer::cuda {
namespace {

GemmCard describe_card() {
  GemmCard card;
  int device = 0;
  MINFER_CUDA_CHECK(cudaGetDevice(&device));
  MINFER_CUDA_CHECK(cudaDeviceGetAttribute(&card.blocks, cudaDevAttrMultiProcessorCount, device));
  using Tile = Tile128x128;  // with any tile, an SM runs one block
  for (const int split : {2, 4}) {
    ClusterLaunch launch(split, Tile::kThreads, sizeof(Tile::Shared), split, nullptr);
    launch.config()->numAttrs = 1;  // only the cluster dimension, no PDL
    MINFER_CUDA_CHECK(cudaOccupancyMaxActiveClusters(
        split == 2 ? &card.clusters_of_2 : &card.clusters_of_4,
        kernel_of<__half, Tile, HgemmKind::Plain>(), launch.config()));
  }
  return card;
}

template <typename T, typename Tile>
void launch_tile(cudaStream_t stream, GemmArgs& args, const GemmPlan& plan) {
  constexpr int kM = Tile::kM, kN = Tile::kN;
  switch (args.epilogue) {
    case Epilogue::Store:
    case Epilogue::Accumulate:
      if (args.angles != nullptr) {
        if constexpr (std::is_same_v<T, __half> && has_tile_of_heads(kM, kN)) {
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
    case Epilogue::GeGluErf:
    case Epilogue::GeGluTanh:
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

bool has_hgemm() {
  // Without sm_90a, the kernel's body is empty.
  static const bool has_wgmma = runs_hopper_code(
      reinterpret_cast<const void*>(hgemm_kernel<__half, Tile128x128, HgemmKind::Plain>));
  return has_wgmma;
}

bool hgemm_takes(const GemmArgs& args) {
  bool aligned = whole_16_bytes(args.x, int64_t{args.k} * 2);
  for (int i = 0; i < args.n_parts; ++i) {
    aligned = aligned && whole_16_bytes(args.part[i].w, int64_t{args.k} * 2);
  }
  return has_hgemm() && aligned;
}

void hgemm_as(cudaStream_t stream, GemmArgs args, const GemmPlan& plan) {
  MINFER_CHECK(plan_fits(args, plan), "hgemm: tile ", int(plan.tile), ", k ", args.k, " in ",
               plan.split, " splits", plan.is_paired ? ", paired" : "", ", epilogue ",
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
