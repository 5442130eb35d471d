#include "kernels/comm/columns.h"

#include <cstring>

#include "kernels/base/half.h"
#include "kernels/comm/ring.h"

namespace minfer {
namespace {

void require_alike(const Columns& to, const Columns& from) {
  MINFER_CHECK(to.dtype == from.dtype && to.n_rows == from.n_rows && to.n_columns == from.n_columns,
               to.n_rows, " x ", to.n_columns, ' ', to.dtype, " from ", from.n_rows, " x ",
               from.n_columns, ' ', from.dtype);
}

}  // namespace

Columns columns_of(Tensor x, int64_t begin, int64_t n) {
  MINFER_CHECK(
      x.shape.rank == 2 && is_float(x.dtype) && begin >= 0 && n >= 0 && begin + n <= x.shape[1],
      "columns ", begin, " to ", begin + n, " of ", x.dtype, ' ', x.shape);
  return {static_cast<std::byte*>(x.data) + bytes_of(x.dtype, begin), x.dtype, x.shape[0], n,
          bytes_of(x.dtype, x.shape[1])};
}

Columns packed(const Columns& like, std::byte* data) {
  return {data, like.dtype, like.n_rows, like.n_columns, bytes_of(like.dtype, like.n_columns)};
}

void copy(const Columns& to, const Columns& from) {
  require_alike(to, from);
  const auto n_bytes = static_cast<size_t>(bytes_of(to.dtype, to.n_columns));
  if (n_bytes == 0) return;
  for (int64_t row = 0; row < to.n_rows; ++row) {
    std::memcpy(to.data + row * to.row_bytes, from.data + row * from.row_bytes, n_bytes);
  }
}

void add(const Columns& to, const Columns& from) {
  require_alike(to, from);
  visit_float(to.dtype, [&]<typename T>() {
    for (int64_t row = 0; row < to.n_rows; ++row) {
      T* const sum = reinterpret_cast<T*>(to.data + row * to.row_bytes);
      const T* const x = reinterpret_cast<const T*>(from.data + row * from.row_bytes);
      for (int64_t i = 0; i < to.n_columns; ++i) {
        sum[i] = from_f32<T>(to_f32(x[i]) + to_f32(sum[i]));
      }
    }
  });
}

Columns chunk_of(Tensor x, int n_ranks, int c) {
  const int64_t begin = chunk_begin(x.shape[1], n_ranks, c);
  return columns_of(x, begin, chunk_begin(x.shape[1], n_ranks, c + 1) - begin);
}

}  // namespace minfer
