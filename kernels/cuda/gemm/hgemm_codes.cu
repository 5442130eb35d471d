#include "kernels/cuda/gemm/hgemm_cut.cuh"

// hgemm for int8 codes; see GemmArgs::x_scales.
namespace minfer::cuda {
namespace {

template <typename T, typename Tile>
void launch_tile(cudaStream_t stream, GemmArgs& args, const GemmPlan& plan) {
  if (args.has_gate()) {
    launch_kind<T, Tile, HgemmKind::SwiGlu, int8_t>(stream, args, plan);
  } else if (args.out_is_f32) {
    launch_kind<T, Tile, HgemmKind::Sums, int8_t>(stream, args, plan);
  } else {
    launch_kind<T, Tile, HgemmKind::Plain, int8_t>(stream, args, plan);
  }
}

}  // namespace

void hgemm_of_codes_as(cudaStream_t stream, GemmArgs args, const GemmPlan& plan) {
  MINFER_CHECK(args.has_codes() && plan_fits(args, plan), "hgemm of codes: tile ", int(plan.tile),
               ", k ", args.k, " in ", plan.split, " splits", plan.is_paired ? ", paired" : "");
  visit_half(args.dtype, [&]<typename T>() {
    switch (plan.tile) {
      case GemmTile::k64x128:
        return launch_tile<T, Tile64x128>(stream, args, plan);
      case GemmTile::k128x128:
        return launch_tile<T, Tile128x128>(stream, args, plan);
      case GemmTile::k128x192:
        return launch_tile<T, Tile128x192>(stream, args, plan);
      case GemmTile::k128x256:
        return launch_tile<T, Tile128x256>(stream, args, plan);
      case GemmTile::k256x192:
        return launch_tile<T, Tile256x192>(stream, args, plan);
      default:
        MINFER_CHECK(false, "hgemm of codes: no tile ", int(plan.tile));
    }
  });
}

}  // namespace minfer::cuda
