#include "models/weight_layout.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/base/quant_codec.h"
#include "models/weight_slice.h"

namespace minfer {
namespace {

// Exponent bits all set: NaN or infinity. The lowest of them added carries into the sign bit then,
// and no branch or comparison keeps the loop from becoming vector code.
template <typename Bits>
bool any_special(const Bits* bits, int64_t n, Bits exponent) {
  const auto lowest = Bits(exponent & -exponent);
  Bits carried = 0;
  for (int64_t i = 0; i < n; ++i) carried |= Bits((bits[i] & exponent) + lowest);
  return (carried & ~(Bits(-1) >> 1)) != 0;
}

bool any_special(const void* x, DType dtype, int64_t n) {
  switch (dtype) {
    case DType::F32:
      return any_special(static_cast<const uint32_t*>(x), n, uint32_t{0x7f800000});
    case DType::F16:
      return any_special(static_cast<const uint16_t*>(x), n, uint16_t{0x7c00});
    case DType::BF16:
      return any_special(static_cast<const uint16_t*>(x), n, uint16_t{0x7f80});
    default:
      return !has_finite_scales(x, dtype, n);
  }
}

// The row of the source of each row whose rotary pairs lie in halves.
std::vector<ShardRange> rope_rows(int64_t n_rows, int64_t n_heads, int64_t rotary_dim) {
  std::vector<ShardRange> rows;
  const int64_t head_dim = n_rows / n_heads, half = rotary_dim / 2;
  for (int64_t row = 0; row < n_rows; ++row) {
    const int64_t head = row / head_dim, i = row % head_dim;
    const int64_t source = i >= rotary_dim ? i : i < half ? 2 * i : 2 * (i - half) + 1;
    rows.push_back({head * head_dim + source, 1});
  }
  return rows;
}

// The rows of the source of each block of queries, keys or values of one head.
std::vector<ShardRange> qkv_rows(int64_t n_rows, int64_t n_heads) {
  std::vector<ShardRange> rows;
  const int64_t head_dim = n_rows / (3 * n_heads);
  for (int64_t kind = 0; kind < 3; ++kind) {
    for (int64_t head = 0; head < n_heads; ++head) {
      rows.push_back({(head * 3 + kind) * head_dim, head_dim});
    }
  }
  return rows;
}

}  // namespace

HostTensor transposed(const Tensor& x) {
  const int64_t n_rows = x.shape[0], n_cols = x.shape[1];
  HostTensor out(x.dtype, {n_cols, n_rows});
  visit_float(x.dtype, [&]<typename T>() {
    const T* from = x.as<const T>();
    T* to = out.as<T>();
    for (int64_t i = 0; i < n_rows; ++i) {
      for (int64_t j = 0; j < n_cols; ++j) to[j * n_rows + i] = from[i * n_cols + j];
    }
  });
  return out;
}

HostTensor rope_pairs_to_halves(const Tensor& x, int64_t n_heads, int64_t rotary_dim) {
  return take_rows(x, rope_rows(x.shape[0], n_heads, rotary_dim));
}
HostQuantizedMatrix rope_pairs_to_halves(const QuantizedMatrix& x, int64_t n_heads,
                                         int64_t rotary_dim) {
  return take_rows(x, rope_rows(x.out_dim(), n_heads, rotary_dim));
}

int64_t rope_row_in_halves(int64_t row, int64_t head_dim, int64_t rotary_dim) {
  const int64_t first = row / head_dim * head_dim, i = row % head_dim;
  return first + (i >= rotary_dim ? i : i / 2 + i % 2 * (rotary_dim / 2));
}

int64_t qkv_row_in_blocks(int64_t row, int64_t n_rows, int64_t n_heads) {
  const int64_t head_dim = n_rows / (3 * n_heads);
  const int64_t head = row / (3 * head_dim), kind = row / head_dim % 3;
  return (kind * n_heads + head) * head_dim + row % head_dim;
}

HostTensor qkv_by_head_to_blocks(const Tensor& x, int64_t n_heads) {
  return take_rows(x, qkv_rows(x.shape[0], n_heads));
}
HostQuantizedMatrix qkv_by_head_to_blocks(const QuantizedMatrix& x, int64_t n_heads) {
  return take_rows(x, qkv_rows(x.out_dim(), n_heads));
}

int64_t first_non_finite(const Tensor& x) {
  constexpr int64_t kPieceElements = 4096;  // whole blocks of every dtype
  const int64_t n = x.n_elements();
  std::vector<float> values(kPieceElements);
  for (int64_t begin = 0; begin < n; begin += kPieceElements) {
    const int64_t count = std::min(kPieceElements, n - begin);
    const auto* piece = static_cast<const std::byte*>(x.data) + bytes_of(x.dtype, begin);
    if (!any_special(piece, x.dtype, count)) continue;
    dequantize_row(values.data(), piece, x.dtype, count);
    for (int64_t i = 0; i < count; ++i) {
      if (!std::isfinite(values[static_cast<size_t>(i)])) return begin + i;
    }
  }
  return -1;
}

}  // namespace minfer
