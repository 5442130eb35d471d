#include "models/weight_slice.h"

#include <cstring>
#include <vector>

namespace minfer {

int64_t length_of(std::span<const ShardRange> ranges) {
  int64_t n = 0;
  for (const ShardRange& range : ranges) n += range.n;
  return n;
}

namespace {

void copy_rows(Tensor to, const Tensor& x, std::span<const ShardRange> ranges) {
  if (!x) return;
  int64_t at = 0;
  for (const ShardRange& range : ranges) {
    const Tensor from = x.rows(range.begin, range.n), part = to.rows(at, range.n);
    std::memcpy(part.data, from.data, static_cast<size_t>(from.n_bytes()));
    at += range.n;
  }
}

// divisor: columns of the ranges that an element of x stands for.
void copy_columns(Tensor to, const Tensor& x, std::span<const ShardRange> ranges,
                  int64_t divisor = 1) {
  if (!x) return;
  const int64_t row_bytes = bytes_of(x.dtype, x.shape[1]);
  auto* out = static_cast<std::byte*>(to.data);
  for (int64_t row = 0; row < x.shape[0]; ++row) {
    const auto* const from = static_cast<const std::byte*>(x.data) + row * row_bytes;
    for (const ShardRange& range : ranges) {
      const int64_t n_bytes = bytes_of(x.dtype, range.n / divisor);
      std::memcpy(out, from + bytes_of(x.dtype, range.begin / divisor),
                  static_cast<size_t>(n_bytes));
      out += n_bytes;
    }
  }
}

}  // namespace

HostTensor take_rows(const Tensor& x, std::span<const ShardRange> ranges) {
  Shape shape = x.shape;
  shape.dims[0] = length_of(ranges);
  HostTensor taken(x.dtype, shape);
  copy_rows(taken, x, ranges);
  return taken;
}

HostTensor take_columns(const Tensor& x, std::span<const ShardRange> ranges) {
  HostTensor taken(x.dtype, {x.shape[0], length_of(ranges)});
  copy_columns(taken, x, ranges);
  return taken;
}

HostQuantizedMatrix take_rows(const QuantizedMatrix& x, std::span<const ShardRange> ranges) {
  HostQuantizedMatrix taken = make_quantized_matrix(
      x.codes.dtype, x.scales.dtype, length_of(ranges), x.in_dim(), x.group, x.asymmetric());
  copy_rows(taken.codes, x.codes, ranges);
  copy_rows(taken.scales, x.scales, ranges);
  copy_rows(taken.mins, x.mins, ranges);
  return taken;
}

HostQuantizedMatrix take_columns(const QuantizedMatrix& x, std::span<const ShardRange> ranges) {
  const int64_t in_dim = length_of(ranges);
  const bool has_row_scales = x.group == x.in_dim();
  HostQuantizedMatrix taken =
      make_quantized_matrix(x.codes.dtype, x.scales.dtype, x.out_dim(), in_dim,
                            has_row_scales ? in_dim : x.group, x.asymmetric());
  copy_columns(taken.codes, x.codes, ranges);
  const ShardRange row{0, x.group};
  const std::span<const ShardRange> of_scales = has_row_scales ? std::span(&row, 1) : ranges;
  copy_columns(taken.scales, x.scales, of_scales, x.group);
  copy_columns(taken.mins, x.mins, of_scales, x.group);
  return taken;
}

}  // namespace minfer
