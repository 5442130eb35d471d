#include "tests/support/float64_ops.h"
#include "tests/support/tensors.h"
#include "tests/support/test_data.h"

namespace minfer::test {
namespace {

class Positions : public testing::TestWithParam<std::string> {};

// The sum of two products: 2 u of the magnitudes, 3 u if the products are rounded first.
TEST_P(Positions, RopeMatchesFloat64) {
  const auto backend = make_cpu_backend({.n_threads = 2, .isa = GetParam()});
  for (const auto& [n_tokens, n_heads, head_dim, rotary_dim] :
       {std::tuple<int64_t, int64_t, int64_t, int64_t>{1, 1, 2, 2},
        {3, 2, 5, 4},
        {2, 3, 8, 8},
        {5, 4, 64, 64},
        {70, 9, 64, 48},
        {2, 2, 80, 74},
        {4, 1, 128, 128}}) {
    constexpr int64_t kPos = 9;
    const HostTensor x = random_normal(1, {n_tokens, n_heads, head_dim});
    HostTensor cos_sin(DType::F32, {kPos + n_tokens, rotary_dim / 2, 2});
    for (int64_t i = 0; i < cos_sin.view().n_elements() / 2; ++i) {
      cos_sin.as<float>()[2 * i] = std::cos(float(i));
      cos_sin.as<float>()[2 * i + 1] = std::sin(float(i));
    }
    const DeviceTensor rotated = backend->upload(x);
    const SequenceRows rows{rotated.view().shape[0], kPos, {}};
    backend->rope(rotated, backend->upload(cos_sin), {&rows, 1});
    const float64::Values x64 = doubles(x);
    const float64::Values want =
        float64::rope(x64, doubles(cos_sin), n_heads, head_dim, rotary_dim, kPos);
    const std::vector<float> got = values_of(*backend, rotated);
    const int64_t half = rotary_dim / 2;
    for (int64_t i = 0; i < int64_t(got.size()); ++i) {
      const int64_t at = i % head_dim;
      if (at >= rotary_dim) {
        ASSERT_EQ(got[size_t(i)], x.at(i));
        continue;
      }
      const int64_t other = at < half ? i + half : i - half;
      const double magnitude = std::abs(x64[size_t(i)]) + std::abs(x64[size_t(other)]);
      ASSERT_NEAR(double(got[size_t(i)]), want[size_t(i)], 3 * kU * magnitude)
          << "head_dim " << head_dim << ", element " << i;
    }
  }
}

TEST_P(Positions, EmbedCopiesRows) {
  const auto backend = make_cpu_backend({.n_threads = 2, .isa = GetParam()});
  for (DType dtype : {DType::F32, DType::F16, DType::BF16}) {
    constexpr int64_t kVocab = 37, kDim = 21;
    const HostTensor table = random_normal(1, {kVocab, kDim}, dtype);
    const Matrix packed = backend->pack_matrix(table);
    const std::vector<TokenId> ids = {0, 36, 5, 5, 16, 15};
    const DeviceTensor out = poisoned(*backend, {int64_t(ids.size()), kDim});
    backend->embed(out, packed, ids);
    const std::vector<float> got = values_of(*backend, out);
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], table.at(ids[i / kDim] * kDim + int64_t(i % kDim))) << dtype << " " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, Positions, testing::ValuesIn(supported_isas()));

}  // namespace
}  // namespace minfer::test
