#include <cudaTypedefs.h>

#include <algorithm>

#include "kernels/cuda/device.h"
#include "kernels/cuda/gemm/hgemm.cuh"

namespace minfer::cuda {
namespace {

PFN_cuTensorMapEncodeTiled_v12000 tensor_map_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  MINFER_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                     cudaEnableDefault, &found));
  MINFER_REQUIRE(Gpu, found == cudaDriverEntryPointSuccess,
                 "the driver has no cuTensorMapEncodeTiled; CUDA 12 is needed");
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

// Of a row-major matrix, in boxes of box_rows rows of 128 or 64 bytes, swizzled over as many.
CUtensorMap make_map(const void* data, DType dtype, int64_t rows, int64_t columns, int box_rows,
                     int box_row_bytes = 128) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encode = tensor_map_encoder();
  const CUtensorMapDataType type = dtype == DType::F32   ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                   : dtype == DType::F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                         : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const auto element_bytes = static_cast<cuuint64_t>(bytes_of(dtype, 1));
  const cuuint64_t dims[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {dims[0] * element_bytes};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(box_row_bytes / element_bytes),
                             static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  CUtensorMap map;
  const CUresult status =
      encode(&map, type, 2, const_cast<void*>(data), dims, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE,
             box_row_bytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  MINFER_REQUIRE(Gpu, status == CUDA_SUCCESS, "cuTensorMapEncodeTiled of ", dtype, " [", rows, ", ",
                 columns, "]: error ", int(status));
  return map;
}

bool whole_16_bytes(const void* data, int64_t row_bytes) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && row_bytes % 16 == 0;
}

// A launch with clusters of `split` blocks that may begin early, as launch() in launch.h.
class Launch {
 public:
  Launch(int blocks, int threads, size_t smem_bytes, int split, cudaStream_t stream) {
    attributes_[0].id = cudaLaunchAttributeClusterDimension;
    attributes_[0].val.clusterDim.x = static_cast<unsigned>(split);
    attributes_[0].val.clusterDim.y = attributes_[0].val.clusterDim.z = 1;
    attributes_[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes_[1].val.programmaticStreamSerializationAllowed = 1;
    config_.gridDim = static_cast<unsigned>(blocks);
    config_.blockDim = static_cast<unsigned>(threads);
    config_.dynamicSmemBytes = smem_bytes;
    config_.stream = stream;
    config_.attrs = split > 1 ? attributes_ : attributes_ + 1;
    config_.numAttrs = split > 1 ? 2 : 1;
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  cudaLaunchConfig_t* config() { return &config_; }

 private:
  cudaLaunchAttribute attributes_[2]{};
  cudaLaunchConfig_t config_{};
};

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
// Cards of one process are of one kind.
const GemmCard& card() {
  static const GemmCard card = describe_card();
  return card;
}

template <typename T, typename Tile, HgemmKind kKind>
void launch_kind(cudaStream_t stream, GemmArgs& args, int split) {
  constexpr int kOut = Tile::template kOut<kKind>;
  HgemmMaps maps{};
  HgemmCut cut{};
  cut.tiles_m = static_cast<int>(ceil_div(args.m, Tile::kM));
  cut.tiles_n = narrow<int>(set_tiles(args, kOut));
  cut.split = split;
  const auto map_rows = [&](CUtensorMap& whole, CUtensorMap& tail, const void* data, int rows,
                            int box_rows) {
    whole = make_map(data, args.dtype, rows, args.k, box_rows);
    if (rows % box_rows != 0) tail = make_map(data, args.dtype, rows, args.k, rows % box_rows);
  };
  map_rows(maps.x, maps.x_tail, args.x, args.m, Tile::kM);
  for (int i = 0; i < args.n_parts; ++i) {
    const GemmArgs::Part& part = args.part[i];
    map_rows(maps.w[i], maps.w_tail[i], part.w, part.n, kOut);
    if (i >= args.n_tiled_parts()) continue;
    const DType out_dtype = args.out_is_f32 ? DType::F32 : args.dtype;
    cut.out_by_map[i] = whole_16_bytes(part.out, bytes_of(out_dtype, part.n));
    if (!cut.out_by_map[i]) continue;
    maps.out[i] = make_map(part.out, out_dtype, args.m, part.n, 64);
    if (kOut % 64 == 32 && !args.out_is_f32) {
      maps.out_half[i] = make_map(part.out, out_dtype, args.m, part.n, 64, 64);
    }
  }
  const int n_tiles = narrow<int>(int64_t{cut.tiles_m} * cut.tiles_n);
  const int blocks = split == 1 ? std::min(n_tiles, card().blocks) : n_tiles * split;
  Launch launch(blocks, Tile::kThreads, sizeof(typename Tile::Shared), split, stream);
  MINFER_CUDA_CHECK(
      cudaLaunchKernelEx(launch.config(), kernel_of<T, Tile, kKind>(), maps, args, cut));
}

template <typename T, typename Tile>
void launch_tile(cudaStream_t stream, GemmArgs& args, int split) {
  constexpr int kM = Tile::kM, kN = Tile::kN;
  switch (args.epilogue) {
    case Epilogue::Store:
    case Epilogue::Accumulate:
      if constexpr (has_tile(kM, kN, Epilogue::Store)) {
        return launch_kind<T, Tile, HgemmKind::Plain>(stream, args, split);
      }
      break;
    case Epilogue::SwiGlu:
      if constexpr (has_tile(kM, kN, Epilogue::SwiGlu)) {
        return launch_kind<T, Tile, HgemmKind::SwiGlu>(stream, args, split);
      }
      break;
    case Epilogue::GeluErf:
    case Epilogue::GeluTanh:
      if constexpr (has_tile(kM, kN, Epilogue::GeluErf)) {
        return launch_kind<T, Tile, HgemmKind::Gelu>(stream, args, split);
      }
      break;
  }
  MINFER_CHECK(false, "hgemm: epilogue ", int(args.epilogue), " in a tile of ", kM, " x ", kN);
}

}  // namespace

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
               plan.split, " parts, epilogue ", int(args.epilogue));
  visit_half(args.dtype, [&]<typename T>() {
    switch (plan.tile) {
      case GemmTile::k64x96:
        return launch_tile<T, Tile64x96>(stream, args, plan.split);
      case GemmTile::k64x128:
        return launch_tile<T, Tile64x128>(stream, args, plan.split);
      case GemmTile::k64x176:
        return launch_tile<T, Tile64x176>(stream, args, plan.split);
      case GemmTile::k128x96:
        return launch_tile<T, Tile128x96>(stream, args, plan.split);
      case GemmTile::k128x128:
        return launch_tile<T, Tile128x128>(stream, args, plan.split);
      case GemmTile::k128x192:
        return launch_tile<T, Tile128x192>(stream, args, plan.split);
      case GemmTile::k128x224:
        return launch_tile<T, Tile128x224>(stream, args, plan.split);
      case GemmTile::k128x256:
        return launch_tile<T, Tile128x256>(stream, args, plan.split);
      case GemmTile::k256x192:
        return launch_tile<T, Tile256x192>(stream, args, plan.split);
    }
  });
}

GemmPlan hgemm_plan(const GemmArgs& args) { return plan_gemm(args, card()); }

void hgemm(cudaStream_t stream, GemmArgs args) { hgemm_as(stream, args, hgemm_plan(args)); }

}  // namespace minfer::cuda
