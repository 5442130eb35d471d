#include <cstring>

#include "kernels/cpu/layout.h"
#include "tests/support/float64_ops.h"
#include "tests/support/tensors.h"
#include "tests/support/test_data.h"

namespace minfer::test {
namespace {

constexpr int64_t kBlock = cpu::kKBlock;  // columns summed before the blocks are added

// A chain of n fused (or rounded) multiply-adds is off by at most n u of the sum of magnitudes, one
// more u if multiplications are rounded; adding the block sums and the residual costs one u each.
double bound(int64_t in_dim, double sum_of_magnitudes) {
  const int64_t n_blocks = (in_dim + kBlock - 1) / kBlock;
  return (double(std::min(in_dim, kBlock) + n_blocks) + 3) * kU * sum_of_magnitudes + 1e-45;
}

struct Dims {
  int64_t n_tokens, in_dim, out_dim;
};

std::vector<Dims> shapes() {
  std::vector<Dims> all;
  for (int64_t n_tokens : {1, 2, 5, 9, 15, 16, 17, 33, 61}) {
    for (auto [in_dim, out_dim] : {std::pair<int64_t, int64_t>{1, 1},
                                   {3, 17},
                                   {64, 48},
                                   {255, 31},
                                   {257, 130},
                                   {576, 192}}) {
      all.push_back({n_tokens, in_dim, out_dim});
    }
  }
  all.push_back({300, 513, 97});
  all.push_back({5, 1, 5000});  // thin rows: many panels in few bytes
  all.push_back({1, 2048, 2048});
  return all;
}

class Matmul : public testing::TestWithParam<std::tuple<std::string, DType>> {};

TEST_P(Matmul, MatchesFloat64) {
  const auto [isa, dtype] = GetParam();
  const auto backend = make_cpu_backend({.n_threads = 2, .isa = isa});
  for (const auto [n_tokens, in_dim, out_dim] : shapes()) {
    for (bool accumulate : {false, true}) {
      SCOPED_TRACE(cat("x [", n_tokens, ", ", in_dim, "], out ", out_dim, ", acc ", accumulate));
      const HostTensor x = random_normal(1, {n_tokens, in_dim});
      const HostTensor w = random_normal(2, {out_dim, in_dim}, dtype);
      const HostTensor residual = random_normal(3, {n_tokens, out_dim});
      const Matrix packed = backend->pack_matrix(w);
      const DeviceTensor out =
          accumulate ? backend->upload(residual) : poisoned(*backend, {n_tokens, out_dim});
      backend->matmul(out, backend->upload(x), packed, accumulate);

      float64::Values x64 = doubles(x), w64 = doubles(w);
      float64::Values want = float64::matmul(x64, w64, in_dim);
      for (double& v : x64) v = std::abs(v);
      for (double& v : w64) v = std::abs(v);
      float64::Values magnitude = float64::matmul(x64, w64, in_dim);
      const std::vector<float> got = values_of(*backend, out);
      for (size_t i = 0; i < got.size(); ++i) {
        if (accumulate) {
          want[i] += double(residual.at(int64_t(i)));
          magnitude[i] += std::abs(double(residual.at(int64_t(i))));
        }
        ASSERT_NEAR(double(got[i]), want[i], bound(in_dim, magnitude[i])) << "element " << i;
      }
    }
  }
}

// Row t has the same bits however many rows are computed together, on any number of threads.
TEST_P(Matmul, BitsDependOnNeitherTokensNorThreads) {
  const auto [isa, dtype] = GetParam();
  constexpr int64_t kMaxTokens = 530, kIn = 611, kOut = 187;
  const HostTensor x = random_normal(1, {kMaxTokens, kIn});
  const HostTensor w = random_normal(2, {kOut, kIn}, dtype);
  std::vector<float> want;
  for (int n_threads : {1, 2, 3, 5}) {
    const auto backend = make_cpu_backend({.n_threads = n_threads, .isa = isa});
    const Matrix packed = backend->pack_matrix(w);
    const DeviceTensor x_all = backend->upload(x);
    const DeviceTensor out = poisoned(*backend, {kMaxTokens, kOut});
    if (want.empty()) {
      for (int64_t t = 0; t < kMaxTokens; ++t) {
        backend->matmul(out.view().rows(t, 1), x_all.view().rows(t, 1), packed);
      }
      want = values_of(*backend, out);
    }
    std::vector<int64_t> counts = {511, 512, 513, kMaxTokens};
    for (int64_t n = 1; n <= 40; ++n) counts.push_back(n);
    for (int64_t n : counts) {
      const DeviceTensor part = poisoned(*backend, {n, kOut});
      backend->matmul(part, x_all.view().rows(kMaxTokens - n, n), packed);
      const std::vector<float> got = values_of(*backend, part);
      ASSERT_EQ(0, std::memcmp(got.data(), want.data() + (kMaxTokens - n) * kOut,
                               got.size() * sizeof(float)))
          << n << " tokens, " << n_threads << " threads";
    }
  }
}

// The kernel converts each of the 65536 f16 and bf16 numbers to its exact f32 value.
TEST_P(Matmul, ConvertsEveryHalf) {
  const auto [isa, dtype] = GetParam();
  if (dtype == DType::F32) return;
  const auto backend = make_cpu_backend({.n_threads = 1, .isa = isa});
  for (int64_t n_tokens : {1, 20}) {
    HostTensor w(dtype, {65536, 1});
    for (int i = 0; i < 65536; ++i) static_cast<uint16_t*>(w.view().data)[i] = uint16_t(i);
    const HostTensor one = from_values(std::vector<float>(size_t(n_tokens), 1), {n_tokens, 1});
    const DeviceTensor out = poisoned(*backend, {n_tokens, 65536});
    backend->matmul(out, backend->upload(one), backend->pack_matrix(w));
    const std::vector<float> got = values_of(*backend, out);
    for (int64_t i = 0; i < 65536; ++i) {
      const float want = w.at(i);
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(got[size_t(i)])) << i;
      } else {
        ASSERT_EQ(got[size_t(i)], want) << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, Matmul,
                         testing::Combine(testing::ValuesIn(supported_isas()),
                                          testing::Values(DType::F32, DType::F16, DType::BF16)));

}  // namespace
}  // namespace minfer::test
