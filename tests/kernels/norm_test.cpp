#include "tests/support/float64_ops.h"
#include "tests/support/tensors.h"
#include "tests/support/test_data.h"

namespace minfer::test {
namespace {

constexpr float kEps = 1e-5f;

class Norm : public testing::TestWithParam<std::tuple<std::string, int64_t, int64_t>> {};

// Holds for any order of summation: the sum of dim squares is off by dim u of itself, the scale by
// half of that; root, divisions and multiplications stay under 8 u.
TEST_P(Norm, RmsNormMatchesFloat64) {
  const auto [isa, n_rows, dim] = GetParam();
  const auto backend = make_cpu_backend({.n_threads = 2, .isa = isa});
  const HostTensor x = random_normal(1, {n_rows, dim}), weight = random_normal(2, {dim});
  const DeviceTensor out = poisoned(*backend, {n_rows, dim}), in_place = backend->upload(x);
  const DeviceTensor w = backend->upload_vector(weight);
  backend->rms_norm(out, in_place, w, kEps);
  backend->rms_norm(in_place, in_place, w, kEps);

  const float64::Values want = float64::rms_norm(doubles(x), doubles(weight), double(kEps));
  const std::vector<float> got = values_of(*backend, out);
  EXPECT_EQ(got, values_of(*backend, in_place));
  for (size_t i = 0; i < got.size(); ++i) {
    const double bound = (0.5 * double(dim) + 8) * kU * std::abs(want[i]) + kSmallestNormal;
    ASSERT_NEAR(double(got[i]), want[i], bound) << "element " << i;
  }
}

// The mean is off by d = dim u mean|x| at most, which the variance feels as d^2 only (deviations
// sum to zero); the rest as for rms_norm. The bias adds one rounding. Both GELUs have a slope below
// 1.13 and an own error below 6 u |x|.
TEST_P(Norm, LayerNormMatchesFloat64) {
  const auto [isa, n_rows, dim] = GetParam();
  const auto backend = make_cpu_backend({.n_threads = 2, .isa = isa});
  HostTensor x = random_normal(1, {n_rows, dim});
  for (int64_t i = 0; i < n_rows * dim; ++i) x.as<float>()[i] += 2;  // a mean far from 0
  const HostTensor weight = random_normal(2, {dim}), bias = random_normal(3, {dim});
  const DeviceTensor x_dev = backend->upload(x), w = backend->upload_vector(weight);
  const DeviceTensor b = backend->upload_vector(bias);

  for (bool with_bias : {false, true}) {
    const Tensor bias_or_null = with_bias ? b.view() : Tensor{};
    const DeviceTensor out = poisoned(*backend, {n_rows, dim});
    backend->layer_norm(out, x_dev, w, bias_or_null, kEps);
    const float64::Values want = float64::layer_norm(
        doubles(x), doubles(weight), with_bias ? doubles(bias) : float64::Values{}, double(kEps));
    const std::vector<float> got = values_of(*backend, out);
    std::vector<double> bounds(got.size());
    for (int64_t row = 0; row < n_rows; ++row) {
      double mean_abs = 0, mean = 0, variance = 0;
      for (int64_t i = 0; i < dim; ++i) {
        mean_abs += std::abs(double(x.at(row * dim + i))) / double(dim);
        mean += double(x.at(row * dim + i)) / double(dim);
      }
      for (int64_t i = 0; i < dim; ++i) {
        variance += std::pow(double(x.at(row * dim + i)) - mean, 2) / double(dim);
      }
      const double d = (double(dim) + 1) * kU * mean_abs;
      const double scale = 1 / std::sqrt(variance + double(kEps));
      const double relative = (0.5 * double(dim) + 8) * kU + d * d * scale * scale;
      for (int64_t i = 0; i < dim; ++i) {
        const double centered = double(x.at(row * dim + i)) - mean;
        const double y = std::abs(double(weight.at(i))) * scale;
        const size_t at = size_t(row * dim + i);
        bounds[at] = y * (d + std::abs(centered) * relative) +
                     2 * kU * (std::abs(want[at]) + std::abs(double(bias.at(i))));
        ASSERT_NEAR(double(got[at]), want[at], bounds[at]) << "row " << row << ", element " << i;
      }
    }
    for (GeluKind kind : {GeluKind::Erf, GeluKind::Tanh}) {
      const DeviceTensor fused = poisoned(*backend, {n_rows, dim});
      backend->norm(
          {.out = fused,
           .x = x_dev,
           .weight = w,
           .bias = bias_or_null,
           .kind = NormKind::Layer,
           .eps = kEps,
           .activation = kind == GeluKind::Erf ? Activation::GeluErf : Activation::GeluTanh});
      const std::vector<float> got_fused = values_of(*backend, fused);
      for (size_t i = 0; i < got.size(); ++i) {
        const double bound = 1.13 * bounds[i] + 6 * kU * std::abs(want[i]);
        ASSERT_NEAR(double(got_fused[i]), float64::gelu(want[i], kind), bound) << "element " << i;
      }
    }
  }
}

// A norm of each head with weights of its own, and none at all.
TEST_P(Norm, WeightsOfEachHead) {
  const auto [isa, n_rows, dim] = GetParam();
  const auto backend = make_cpu_backend({.n_threads = 2, .isa = isa});
  constexpr int64_t kHeads = 3;
  const HostTensor x = random_normal(1, {n_rows, kHeads, dim});
  const HostTensor weight = random_normal(2, {kHeads * dim});
  const DeviceTensor w = backend->upload_vector(weight);
  const DeviceTensor heads = backend->upload(x);
  backend->norm_heads(heads, QkNorm::LayerOfEachHead, w, kEps);
  const std::vector<float> got = values_of(*backend, heads);
  for (int64_t head = 0; head < kHeads; ++head) {
    // The same bits as one head's rows alone.
    HostTensor alone(DType::F32, {n_rows, dim});
    for (int64_t i = 0; i < n_rows * dim; ++i) {
      alone.as<float>()[i] = x.at((i / dim * kHeads + head) * dim + i % dim);
    }
    const DeviceTensor out = poisoned(*backend, {n_rows, dim});
    const Tensor own = w.view().reshaped({kHeads, dim}).rows(head, 1).reshaped({dim});
    backend->layer_norm(out, backend->upload(alone), own, {}, kEps);
    const std::vector<float> want = values_of(*backend, out);
    for (int64_t i = 0; i < n_rows * dim; ++i) {
      ASSERT_EQ(got[size_t((i / dim * kHeads + head) * dim + i % dim)], want[size_t(i)]) << i;
    }
  }
  const DeviceTensor copy = poisoned(*backend, x.view().shape);
  backend->norm(
      {.out = copy, .x = backend->upload(x), .weight = {}, .bias = {}, .kind = NormKind::None});
  EXPECT_EQ(values_of(*backend, copy), values_of(*backend, backend->upload(x)));
}

// The maximum is exact, its distance off by at most u of itself, exp by 4 u (2 units in the last
// place), the sum by n u, the quotient by 2 u.
TEST_P(Norm, SoftmaxMatchesFloat64) {
  const auto [isa, n_rows, n] = GetParam();
  const auto backend = make_cpu_backend({.n_threads = 2, .isa = isa});
  const HostTensor x = random_normal(1, {n_rows, n}, DType::F32, /*scale=*/10);
  const DeviceTensor out = poisoned(*backend, {n_rows, n}), in_place = backend->upload(x);
  backend->softmax(out, in_place);
  backend->softmax(in_place, in_place);
  const float64::Values x64 = doubles(x), want = float64::softmax(x64, size_t(n));
  const std::vector<float> got = values_of(*backend, out);
  EXPECT_EQ(got, values_of(*backend, in_place));
  for (int64_t row = 0; row < n_rows; ++row) {
    const auto begin = x64.begin() + row * n;
    const double max = *std::max_element(begin, begin + n);
    for (int64_t i = 0; i < n; ++i) {
      const size_t at = size_t(row * n + i);
      const double bound = (2 * (max - x64[at]) + double(n) + 10) * kU * want[at] + kSmallestNormal;
      ASSERT_NEAR(double(got[at]), want[at], bound) << "row " << row << ", element " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Norm,
                         testing::Combine(testing::ValuesIn(supported_isas()),
                                          testing::Values(1, 3, 40),
                                          testing::Values(1, 8, 17, 264, 4096)));

}  // namespace
}  // namespace minfer::test
