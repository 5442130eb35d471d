#include "kernels/base/quant_codec.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/base/quantized_matrix.h"
#include "tests/support/quant_records.h"
#include "tests/support/test_data.h"

namespace minfer {
namespace {

// Equals the values of the `gguf` Python package (scripts/make_quant_fixtures.py), bit for bit.
TEST(QuantCodec, EveryTypeEqualsTheReference) {
  const std::vector<test::QuantRecord> records = test::read_quant_records("quant_blocks.bin");
  EXPECT_EQ(records.size(), 15u);
  for (const auto& [dtype, blocks, expected] : records) {
    const size_t n = expected.size();
    std::vector<float> found(n, std::nanf(""));
    dequantize_row(found.data(), blocks.data(), dtype, static_cast<int64_t>(n));
    for (size_t i = 0; i < n; ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(found[i]), std::bit_cast<uint32_t>(expected[i]))
          << dtype << " element " << i << ": " << found[i] << ", expected " << expected[i];
    }
    if (is_float(dtype)) continue;

    // The same as a QuantizedMatrix, of two rows if the number of blocks is even.
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
          << dtype << " as a matrix, element " << i << ": " << found[i] << ", expected "
          << expected[i];
    }
  }
}

TEST(QuantCodec, EncodesAsTheReference) {
  const std::vector<test::QuantRecord> records = test::read_quant_records("quant_rows.bin");
  EXPECT_EQ(records.size(), 4u);
  for (const auto& [dtype, blocks, values] : records) {
    std::string found(blocks.size(), '\x55');
    encode_row(found.data(), values.data(), dtype, std::ssize(values));
    EXPECT_TRUE(found == blocks) << dtype;
  }
}

}  // namespace
}  // namespace minfer
