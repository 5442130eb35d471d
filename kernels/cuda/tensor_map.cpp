#include "kernels/cuda/tensor_map.h"

#include <cudaTypedefs.h>

#include "kernels/cuda/check.h"

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

// Extents are innermost first. Strides, in bytes, are those from the second extent on.
struct MapShape {
  int rank;
  cuuint64_t extents[3], strides[2];
  cuuint32_t box[3];
};

CUtensorMap encode_map(const void* data, DType dtype, const MapShape& shape,
                       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encode = tensor_map_encoder();
  const CUtensorMapDataType type = dtype == DType::F32   ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                   : dtype == DType::F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                         : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const cuuint32_t steps[] = {1, 1, 1};
  CUtensorMap map;
  const CUresult status =
      encode(&map, type, static_cast<cuuint32_t>(shape.rank), const_cast<void*>(data),
             shape.extents, shape.strides, shape.box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
             promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  MINFER_REQUIRE(Gpu, status == CUDA_SUCCESS, "cuTensorMapEncodeTiled of ", dtype, " [",
                 shape.extents[1], ", ", shape.extents[0], "]: error ", int(status));
  return map;
}

}  // namespace

CUtensorMap make_map(const void* data, DType dtype, int64_t rows, int64_t columns, int box_rows,
                     int box_row_bytes) {
  const int64_t element_bytes = bytes_of(dtype, 1);
  // Promotion to 256 bytes gains nothing over 128, and where rows begin at odd multiples of 16
  // bytes it costs 15 to 20 % of the loads: measured on an H200.
  return encode_map(data, dtype,
                    {.rank = 2,
                     .extents = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)},
                     .strides = {static_cast<cuuint64_t>(columns * element_bytes)},
                     .box = {static_cast<cuuint32_t>(box_row_bytes / element_bytes),
                             static_cast<cuuint32_t>(box_rows)}},
                    box_row_bytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                    CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}

CUtensorMap make_heads_map(const void* data, int64_t rows, int64_t n_heads, int64_t head_dim,
                           int64_t head_stride, int box_rows) {
  return encode_map(
      data, DType::F16,
      {.rank = 3,
       .extents = {static_cast<cuuint64_t>(head_dim), static_cast<cuuint64_t>(rows),
                   static_cast<cuuint64_t>(n_heads)},
       .strides = {static_cast<cuuint64_t>(head_dim) * 2, static_cast<cuuint64_t>(head_stride) * 2},
       .box = {64, static_cast<cuuint32_t>(box_rows), 1}},
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
}

}  // namespace minfer::cuda
