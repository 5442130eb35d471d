#include <algorithm>
#include <cstring>

#include "tests/support/quant_records.h"
#include "tests/support/random_blocks.h"
#include "tests/support/tensors.h"

namespace minfer::test {
namespace {

constexpr DType kBlockTypes[] = {
    DType::Q8_0, DType::Q4_0, DType::Q4_1, DType::Q5_0,   DType::Q5_1,   DType::Q2_K, DType::Q3_K,
    DType::Q4_K, DType::Q5_K, DType::Q6_K, DType::IQ4_NL, DType::IQ4_XS, DType::MXFP4};

constexpr float kLimit = 1e4f;

std::vector<float> product(Backend& backend, const HostTensor& x, const Matrix& w,
                           bool accumulate) {
  const Shape shape{x.view().shape[0], w.out_dim};
  const DeviceTensor out =
      accumulate ? backend.upload(random_normal(3, shape)) : poisoned(backend, shape);
  backend.matmul(out, backend.upload(x), w, accumulate);
  return values_of(backend, out);
}

class QuantizedBlocks : public testing::TestWithParam<std::tuple<std::string, Activations>> {};

// Blocks give the same results, bit for bit, as the matrix that they represent, whose products are
// compared with float64 (QuantizedMatmul).
TEST_P(QuantizedBlocks, MultiplyAsTheirMatrix) {
  const auto backend = make_cpu_backend(
      {.n_threads = 2, .isa = std::get<0>(GetParam()), .activations = std::get<1>(GetParam())});
  for (const DType dtype : kBlockTypes) {
    const int64_t block = info(dtype).block_elements;
    for (const int64_t in_dim : {block, 3 * block, 1024 + 5 * block}) {
      for (const int64_t out_dim : {1, 17, 100}) {
        const HostTensor blocks = random_blocks(dtype, {out_dim, in_dim}, kLimit);
        const Matrix packed = backend->pack_matrix(blocks.view());
        EXPECT_FALSE(is_float(packed.dtype)) << dtype;
        const Matrix same = backend->pack_matrix(to_quantized_matrix(blocks.view()).view());
        for (const int64_t n_tokens : {1, 2, 7, 19}) {
          const HostTensor x = random_normal(4, {n_tokens, in_dim});
          const bool accumulate = n_tokens == 7;
          const std::vector<float> got = product(*backend, x, packed, accumulate);
          const std::vector<float> want = product(*backend, x, same, accumulate);
          ASSERT_EQ(0, std::memcmp(got.data(), want.data(), got.size() * sizeof(float)))
              << dtype << " [" << out_dim << ", " << in_dim << "], " << n_tokens << " tokens";
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, QuantizedBlocks,
                         testing::Combine(testing::ValuesIn(supported_isas()),
                                          testing::Values(Activations::Float, Activations::Int8,
                                                          Activations::Int8Asym)));

// Also those of the format's reference implementation, which random bytes seldom make.
TEST(QuantizedBlocksOfFiles, MultiplyAsTheirMatrix) {
  const auto backend = make_cpu_backend({.n_threads = 2, .isa = ""});
  int n_types = 0;
  for (const QuantRecord& record : read_quant_records("quant_blocks.bin")) {
    if (is_float(record.dtype)) continue;
    ++n_types;
    const int64_t in_dim = info(record.dtype).block_elements;
    const int64_t out_dim = std::ssize(record.values) / in_dim;
    const Tensor host{const_cast<char*>(record.blocks.data()), record.dtype, {out_dim, in_dim}};
    const HostTensor x = random_normal(4, {3, in_dim});
    EXPECT_EQ(product(*backend, x, backend->pack_matrix(host), false),
              product(*backend, x, backend->pack_matrix(to_quantized_matrix(host).view()), false))
        << record.dtype;
  }
  EXPECT_EQ(n_types, 13);
}

TEST(QuantizedBlocksOfFiles, EmbedGivesTheValuesOfTheFile) {
  const auto backend = make_cpu_backend({.n_threads = 2, .isa = ""});
  constexpr int64_t kVocab = 37;
  const std::vector<TokenId> ids = {0, 36, 5, 5, 16, 15};
  for (const DType dtype : kBlockTypes) {
    const int64_t dim = 2 * info(dtype).block_elements;
    const HostTensor table = random_blocks(dtype, {kVocab, dim}, kLimit);
    const DeviceTensor out = poisoned(*backend, {int64_t(ids.size()), dim});
    backend->embed(out, backend->pack_matrix(table.view()), ids);
    std::vector<float> want(ids.size() * size_t(dim));
    for (size_t t = 0; t < ids.size(); ++t) {
      dequantize_row(want.data() + int64_t(t) * dim, table.view().rows(ids[t], 1).data, dtype, dim);
    }
    EXPECT_EQ(values_of(*backend, out), want) << dtype;
  }
}

// Codes keep their bits, but on a card those of 5 without products, which have 8, as minimums
// without products are F32 there. Scales keep their factors.
TEST(QuantizedBlocksOfFiles, TakeLittleMoreMemoryThanTheFile) {
  const auto backend = make_cpu_backend();
  for (const DType dtype : kBlockTypes) {
    const Shape shape{256, 2048};
    const GroupFormat format = group_format(dtype);
    const StoredMatrix w{shape[0], shape[1], DType::F32, format};
    const double in_file = double(bytes_of(dtype, shape));
    const double most = dtype == DType::Q2_K ? 1.20 : dtype == DType::MXFP4 ? 1.18 : 1.04;
    EXPECT_LE(double(backend->packed_bytes(w)), most * in_file) << dtype;
    const HostTensor blocks = random_blocks(dtype, shape, kLimit);
    EXPECT_EQ(backend->pack_matrix(blocks.view()).n_bytes, backend->packed_bytes(w)) << dtype;
    const int bits_on_card = format.products ? format.bits : widened(format).bits;
    const double wider = double(shape.n_elements()) / 8 * (bits_on_card - format.bits);
    const double most_on_card = format.has_mins && !format.products ? 1.11 : most;
    for (const MatrixUse use : {MatrixUse::Matmul, MatrixUse::Table}) {
      const StoredMatrix on_card{shape[0], shape[1], DType::F32, format, use};
      EXPECT_LE(double(cuda_packed_bytes(on_card).sum()), most_on_card * in_file + wider) << dtype;
    }
  }
}

}  // namespace
}  // namespace minfer::test
