// What is known of a card's packed matrices in builds without CUDA too.

#include "kernels/backend.h"
#include "kernels/base/math.h"
#include "kernels/cuda/quant/packed_layout.h"

namespace minfer {

// A scale holds for whole instructions of 16 columns, or for the row.
bool cuda_keeps_groups(int64_t in_dim, int64_t group) { return group == in_dim || group % 16 == 0; }

int64_t cuda_packed_bytes(int bits, DType scales, bool asymmetric, int64_t out_dim, int64_t in_dim,
                          int64_t group) {
  const cuda::PackedLayout layout = cuda::packed_layout(bits, out_dim, in_dim, group);
  const int64_t tile_bytes = layout.tile_bytes();
  const int64_t scale_bytes = info(scales).block_bytes + (asymmetric ? int64_t{sizeof(float)} : 0);
  const int64_t n_tiles = checked_mul(layout.n_row_tiles, layout.n_column_tiles);
  const int64_t n_units = checked_mul(layout.n_row_tiles, layout.n_units);
  return checked_add(checked_mul(n_tiles, tile_bytes),
                     checked_mul(n_units, cuda::kTileRows * scale_bytes));
}

int64_t cuda_packed_bytes(const StoredMatrix& w) {
  if (!w.groups || !cuda_keeps_groups(w.in_dim, w.groups->group)) {
    return bytes_of(DType::F16, checked_mul(w.out_dim, w.in_dim));
  }
  return cuda_packed_bytes(w.groups->bits, w.groups->scales, w.groups->has_mins, w.out_dim,
                           w.in_dim, w.groups->group);
}

}  // namespace minfer
