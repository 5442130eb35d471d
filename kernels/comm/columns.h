#pragma once

#include <cstddef>

#include "kernels/base/tensor.h"

namespace minfer {

// Some columns of every row of a matrix in host memory: what ranks on the CPU send each other.
struct Columns {
  std::byte* data = nullptr;  // of the first row
  DType dtype = DType::F32;
  int64_t n_rows = 0, n_columns = 0;
  int64_t row_bytes = 0;  // from one row to the next

  int64_t n_bytes() const { return n_rows * bytes_of(dtype, n_columns); }
};

// Columns [begin, begin + n) of x [n_rows, n_columns].
Columns columns_of(Tensor x, int64_t begin, int64_t n);
// The same columns in memory of their own, row behind row. `data` has n_bytes() of them.
Columns packed(const Columns& like, std::byte* data);

// Both have the same type, rows and number of columns.
void copy(const Columns& to, const Columns& from);
// to += from: F32, F16 or BF16, each sum in F32 and rounded once.
void add(const Columns& to, const Columns& from);

// Chunk c of a ring all-reduce of x. The chunks are ranges of columns, so that the order in which
// an element is summed does not depend on how many rows there are.
Columns chunk_of(Tensor x, int n_ranks, int c);

}  // namespace minfer
