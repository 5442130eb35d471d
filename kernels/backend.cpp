#include "kernels/backend.h"

#include "kernels/base/math.h"
#include "kernels/cuda/quant/packed_layout.h"
#include "kernels/decode_plan.h"

namespace minfer {

std::unique_ptr<DecodePlan> Backend::plan_decode(const DecodeModel&) { return nullptr; }

void Backend::rope_append(KvLayer& cache, Tensor q, Tensor k, Tensor v, Tensor cos_sin,
                          int64_t pos) {
  if (cos_sin) {
    rope(q, cos_sin, pos);
    rope(k, cos_sin, pos);
  }
  kv_append(cache, k, v, pos);
}

void Backend::append_products(KvLayer& cache, Tensor x, const HeadProduct& q, const HeadProduct& k,
                              const HeadProduct& v, Tensor cos_sin, int64_t pos) {
  const auto rows = [](const HeadProduct& p) {
    return p.out.reshaped({p.out.shape[0], p.w.out_dim});
  };
  const Product products[] = {{rows(q), q.w}, {rows(k), k.w}, {rows(v), v.w}};
  matmuls(x, products);
  for (const HeadProduct* p : {&q, &k, &v}) {
    if (p->bias) add_bias(rows(*p), rows(*p), p->bias);
  }
  rope_append(cache, q.out, k.out, v.out, cos_sin, pos);
}

void Backend::gated_matmul(Tensor out, Tensor x, const Matrix& gate, Tensor gate_bias,
                           const Matrix& up, Tensor up_bias, Tensor other) {
  const Product products[] = {{other, gate}, {out, up}};
  matmuls(x, products);
  if (gate_bias) add_bias(other, other, gate_bias);
  if (up_bias) add_bias(out, out, up_bias);
  swiglu(out, other, out);
}

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

}  // namespace minfer
