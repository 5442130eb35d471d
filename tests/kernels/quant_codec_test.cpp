#include "kernels/base/quant_codec.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/base/quantized_matrix.h"
#include "loaders/byte_reader.h"
#include "tests/support/test_data.h"

namespace minfer {
namespace {

DType dtype_named(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(DType::Q6_K); ++i) {
    if (info(static_cast<DType>(i)).name == name) return static_cast<DType>(i);
  }
  ADD_FAILURE() << "no dtype " << name;
  return DType::F32;
}

// Against the values of the `gguf` Python package (scripts/make_quant_fixtures.py), bit for bit.
TEST(QuantCodec, EveryTypeEqualsTheReference) {
  const std::string fixture = test::read_file(test::fixtures_dir() / "quant_blocks.bin");
  ByteReader reader(fixture);
  int n_types = 0;
  for (; reader.left() > 0; ++n_types) {
    const std::string name = reader.text(8).c_str();  // up to the padding
    const auto n = reader.read<uint64_t>();
    const auto n_bytes = reader.read<uint64_t>();
    const std::string blocks = reader.text(n_bytes), values = reader.text(n * sizeof(float));
    const DType dtype = dtype_named(name);
    ASSERT_EQ(static_cast<uint64_t>(bytes_of(dtype, static_cast<int64_t>(n))), n_bytes) << name;

    std::vector<float> expected(n), found(n, std::nanf(""));
    std::memcpy(expected.data(), values.data(), values.size());
    dequantize_row(found.data(), blocks.data(), dtype, static_cast<int64_t>(n));
    for (size_t i = 0; i < n; ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(found[i]), std::bit_cast<uint32_t>(expected[i]))
          << name << " element " << i << ": " << found[i] << ", expected " << expected[i];
    }
    if (is_float(dtype)) continue;

    // The same as a QuantizedMatrix of two rows where the blocks are even in number.
    const int64_t n_rows = static_cast<int64_t>(n) / info(dtype).block_elements % 2 == 0 ? 2 : 1;
    const int64_t in_dim = static_cast<int64_t>(n) / n_rows;
    const HostQuantizedMatrix matrix =
        to_quantized_matrix({const_cast<char*>(blocks.data()), dtype, {n_rows, in_dim}});
    std::fill(found.begin(), found.end(), std::nanf(""));
    for (int64_t row = 0; row < n_rows; ++row) {
      dequantize_row(found.data() + row * in_dim, matrix.view(), row);
    }
    for (size_t i = 0; i < n; ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(found[i]), std::bit_cast<uint32_t>(expected[i]))
          << name << " as a matrix, element " << i << ": " << found[i] << ", expected "
          << expected[i];
    }
  }
  EXPECT_EQ(n_types, 10);
}

}  // namespace
}  // namespace minfer
