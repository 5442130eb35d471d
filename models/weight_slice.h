#pragma once

#include <span>

#include "kernels/base/quantized_matrix.h"
#include "models/shards.h"

namespace minfer {

int64_t length_of(std::span<const ShardRange> ranges);  // of all together

// Copies of some rows of x [n, ..] or [n], or of some columns of x [rows, n], one range after the
// other. Ranges of columns are whole blocks of the dtype, and whole groups of a quantized matrix,
// whose rows may also be one group each: those columns then keep the scale of their row.
HostTensor take_rows(const Tensor& x, std::span<const ShardRange> ranges);
HostTensor take_columns(const Tensor& x, std::span<const ShardRange> ranges);
HostQuantizedMatrix take_rows(const QuantizedMatrix& x, std::span<const ShardRange> ranges);
HostQuantizedMatrix take_columns(const QuantizedMatrix& x, std::span<const ShardRange> ranges);

}  // namespace minfer
