#include "kernels/cuda/check.h"
#include "kernels/cuda/gemm/hgemm_launch.h"
#include "kernels/cuda/gemm/hgemm_transposed.cuh"

namespace minfer::cuda {
namespace {

template <typename T, typename Tile, HgemmKind kKind>
void launch_kind(cudaStream_t stream, GemmArgs& args, const GemmPlan& plan) {
  TransposedMaps maps{};
  HgemmCut cut = cut_gemm(args, plan, Tile::kM, Tile::template kOut<kKind>);
  maps.x = make_map(args.x, args.dtype, args.m, args.k, Tile::kM);
  if (const int tail = args.m % Tile::kM; tail != 0) {
    maps.x_tail = make_map(args.x, args.dtype, args.m, args.k, tail);
  }
  for (int i = 0; i < args.n_parts; ++i) {
    const GemmArgs::Part& part = args.part[i];
    maps.w[i] = make_map(part.w, args.dtype, part.n, args.k, Tile::kHalfN);
    if (i >= args.n_tiled_parts()) continue;
    const DType out_dtype = args.out_is_f32 ? DType::F32 : args.dtype;
    cut.out_by_map[i] = stores_by_map(part.out, bytes_of(out_dtype, part.n));
    if (!cut.out_by_map[i]) continue;
    maps.out[i] = make_map(part.out, out_dtype, args.m, part.n, Tile::kChunk);
    maps.out_rest[i] = make_map(part.out, out_dtype, args.m, part.n, Tile::kRest);
  }
  auto* const kernel = hgemm_transposed_kernel<T, Tile, kKind>;
  MINFER_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(sizeof(typename Tile::Shared))));
  const int cluster = plan.blocks_of_cluster();
  ClusterLaunch launch(clusters_for(plan, cut) * cluster, Tile::kThreads,
                       sizeof(typename Tile::Shared), cluster, stream);
  MINFER_CUDA_CHECK(cudaLaunchKernelEx(launch.config(), kernel, maps, args, cut));
}

template <typename T, typename Tile>
void launch_tile(cudaStream_t stream, GemmArgs& args, const GemmPlan& plan) {
  if constexpr (has_tile(Tile::kM, Tile::kN, Epilogue::SwiGlu)) {
    if (args.has_gate()) return launch_kind<T, Tile, HgemmKind::SwiGlu>(stream, args, plan);
  }
  if constexpr (has_tile(Tile::kM, Tile::kN, Epilogue::GeluErf)) {
    if (args.epilogue == Epilogue::GeluErf || args.epilogue == Epilogue::GeluTanh) {
      return launch_kind<T, Tile, HgemmKind::Gelu>(stream, args, plan);
    }
  }
  MINFER_CHECK(args.epilogue == Epilogue::Store || args.epilogue == Epilogue::Accumulate,
               "hgemm: epilogue ", int(args.epilogue), " in a tile of ", Tile::kM, " x ", Tile::kN);
  launch_kind<T, Tile, HgemmKind::Plain>(stream, args, plan);
}

}  // namespace

void hgemm_transposed(cudaStream_t stream, GemmArgs args, const GemmPlan& plan) {
  visit_half(args.dtype, [&]<typename T>() {
    switch (plan.tile) {
      case GemmTile::k104x256:
        return launch_tile<T, Tile104x256>(stream, args, plan);
      case GemmTile::k136x256:
        return launch_tile<T, Tile136x256>(stream, args, plan);
      case GemmTile::k152x128:
        return launch_tile<T, Tile152x128>(stream, args, plan);
      case GemmTile::k152x192:
        return launch_tile<T, Tile152x192>(stream, args, plan);
      case GemmTile::k200x128:
        return launch_tile<T, Tile200x128>(stream, args, plan);
      default:
        MINFER_CHECK(false, "hgemm: tile ", int(plan.tile), " is not transposed");
    }
  });
}

}  // namespace minfer::cuda
