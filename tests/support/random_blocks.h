#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/base/host_tensor.h"
#include "kernels/base/quant_codec.h"

namespace minfer::test {

// Random blocks of a Q type, of values below `limit` in size; most are much smaller.
inline HostTensor random_blocks(DType dtype, const Shape& shape, float limit, uint64_t seed = 1) {
  HostTensor blocks(dtype, shape);
  const DTypeInfo& type = info(dtype);
  std::mt19937_64 engine(uint64_t(dtype) + seed);
  std::vector<float> values(size_t(type.block_elements));
  auto* const bytes = static_cast<uint8_t*>(blocks.view().data);
  for (int64_t at = 0; at < blocks.view().n_bytes(); at += type.block_bytes) {
    const auto is_moderate = [&](float x) { return std::abs(x) < limit; };  // not a NaN either
    do {
      for (int64_t i = 0; i < type.block_bytes; ++i) bytes[at + i] = uint8_t(engine());
      dequantize_row(values.data(), bytes + at, dtype, type.block_elements);
    } while (!std::ranges::all_of(values, is_moderate));
  }
  return blocks;
}

}  // namespace minfer::test
