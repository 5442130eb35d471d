// Sizes of packed matrices on a card, also in builds without CUDA.

#include "kernels/backend.h"
#include "kernels/base/math.h"
#include "kernels/cuda/quant/packed_layout.h"

namespace minfer {

// A scale must cover whole instructions of 16 columns, or the row.
bool cuda_keeps_groups(int64_t in_dim, int64_t group) { return group == in_dim || group % 16 == 0; }

GroupFormat cuda_groups(const StoredMatrix& w) {
  return w.groups->products ? *w.groups : widened(*w.groups);
}

namespace {

// Of pack_table, row by row without padding.
CudaMatrixBytes table_bytes(const StoredMatrix& w, const GroupFormat& format) {
  const int64_t n = checked_mul(w.out_dim, w.in_dim), n_groups = n / format.group;
  return {.codes = n / 8 * format.bits,
          .scales = bytes_of(format.scales, n_groups),
          .mins = format.has_mins ? bytes_of(DType::F32, n_groups) : 0};
}

}  // namespace

CudaMatrixBytes cuda_packed_bytes(const StoredMatrix& w) {
  if (!w.groups || !cuda_keeps_groups(w.in_dim, w.groups->group)) {
    return {.codes = bytes_of(DType::F16, checked_mul(w.out_dim, w.in_dim))};
  }
  const GroupFormat format = cuda_groups(w);
  if (w.use == MatrixUse::Table && !format.products) return table_bytes(w, format);
  const cuda::PackedLayout layout = cuda::packed_layout(
      format.bits, w.out_dim, w.in_dim, format.group, format.products, format.has_mins);
  const int64_t n_tiles = checked_mul<int64_t>(layout.n_row_tiles, layout.n_column_tiles);
  CudaMatrixBytes bytes{.codes = checked_mul<int64_t>(n_tiles, layout.tile_bytes())};
  if (format.products) {
    bytes.scales = checked_mul<int64_t>(checked_mul<int64_t>(layout.n_row_tiles, layout.n_chunks),
                                        layout.record_bytes());
    return bytes;  // mins lie with the scales
  }
  const int64_t n_scales = checked_mul<int64_t>(
      checked_mul<int64_t>(layout.n_row_tiles, layout.n_units), cuda::kTileRows);
  bytes.scales = checked_mul<int64_t>(n_scales, info(format.scales).block_bytes);
  bytes.mins = format.has_mins ? checked_mul<int64_t>(n_scales, sizeof(float)) : 0;
  return bytes;
}

}  // namespace minfer
