#include <functional>

#include "tests/kernels/cuda/plain_half.h"
#include "tests/support/cuda_tensors.h"

namespace minfer::test {
namespace {

// The fast exponential and division of activations.cuh, and sums in f32, have a relative error
// below this; then the result is rounded to the type.
constexpr double kFunctionError = 0x1p-17;

// Every finite number of the type.
HostTensor every_number(DType dtype) {
  std::vector<uint16_t> bits;
  for (uint32_t i = 0; i < 65536; ++i) {
    const float value = dtype == DType::F16 ? to_f32(f16{uint16_t(i)}) : to_f32(bf16{uint16_t(i)});
    if (std::isfinite(value)) bits.push_back(uint16_t(i));
  }
  HostTensor all(dtype, {std::ssize(bits)});
  std::memcpy(all.view().data, bits.data(), bits.size() * sizeof(uint16_t));
  return all;
}

class CudaElementwise : public testing::TestWithParam<DType> {};

// Where exp leaves the range of f32, the result is at most |x| times the smallest normal f32.
TEST_P(CudaElementwise, FunctionsOfEveryNumberMatchFloat64) {
  MINFER_NEEDS_CUDA();
  const HostTensor x = every_number(GetParam());
  const DeviceTensor x_dev = to_device(x);
  const auto check = [&](auto&& launch, auto&& want_of, auto&& plain_of) {
    const DeviceTensor out = poisoned_device(GetParam(), x.view().shape);
    launch(out);
    const HostTensor got = to_host(out);
    PlainErrors errors;
    for (int64_t i = 0; i < x.view().n_elements(); ++i) {
      const double value = double(x.at(i)), want = want_of(value);
      const double largest = GetParam() == DType::F16 ? 65504 : 3.3895313892515355e38;
      if (std::abs(value) > 0.99 * largest) continue;
      const double bound =
          rounding(GetParam(), want) + kFunctionError * std::abs(want) + std::abs(value) * 0x1p-125;
      ASSERT_NEAR(double(got.at(i)), want, bound) << "x " << value;
      if (std::abs(value) < 16) errors.add(double(got.at(i)), double(plain_of(x.at(i))), want);
    }
    errors.expect_within(GetParam(), "numbers below 16");
  };
  check([&](Tensor out) { cuda::silu(nullptr, out, x_dev); }, float64::silu,
        [](float v) { return plain::silu(v, GetParam()); });
  for (const GeluKind kind : {GeluKind::Erf, GeluKind::Tanh}) {
    check([&](Tensor out) { cuda::gelu(nullptr, out, x_dev, {}, kind); },
          [kind](double v) { return float64::gelu(v, kind); },
          [kind](float v) { return plain::gelu(v, kind, GetParam()); });
  }
}

TEST_P(CudaElementwise, SumsAndProductsMatchFloat64) {
  MINFER_NEEDS_CUDA();
  const DType dtype = GetParam();
  for (const auto& [n_rows, dim] : {std::pair<int64_t, int64_t>{1, 1},
                                    {3, 7},
                                    {1, 4096},
                                    {5, 1000},
                                    {33, 11008},
                                    {70, 37},
                                    {2, 8}}) {
    SCOPED_TRACE(cat("[", n_rows, ", ", dim, "]"));
    const Shape shape{n_rows, dim};
    const HostTensor a = random_normal(1, shape, dtype), b = random_normal(2, shape, dtype);
    const HostTensor bias = random_normal(3, {dim}, dtype), wide = random_normal(4, shape);
    const DeviceTensor a_dev = to_device(a), b_dev = to_device(b), bias_dev = to_device(bias);
    const auto check = [&](DType out_type, auto&& launch, auto&& want_of, double relative,
                           const std::function<float(int64_t)>& plain_of = {}) {
      const DeviceTensor out = poisoned_device(out_type, shape);
      launch(out);
      const HostTensor got = to_host(out);
      PlainErrors errors;
      for (int64_t i = 0; i < n_rows * dim; ++i) {
        const double want = want_of(i);
        ASSERT_NEAR(double(got.at(i)), want,
                    rounding(out_type, want) + relative * std::abs(want) + 0x1p-22)
            << "element " << i;
        if (plain_of) errors.add(double(got.at(i)), double(plain_of(i)), want);
      }
      errors.expect_within(dtype, "all elements");
    };
    const auto at = [&](const HostTensor& t) {
      return [&t, dim = t.view().n_elements()](int64_t i) { return double(t.at(i % dim)); };
    };
    const auto x = at(a), y = at(b), w = at(wide);
    check(
        dtype, [&](Tensor out) { cuda::add(nullptr, out, a_dev, b_dev); },
        [&](int64_t i) { return x(i) + y(i); }, 0);
    for (const Activation gate : {Activation::Silu, Activation::GeluErf, Activation::GeluTanh}) {
      check(
          dtype, [&](Tensor out) { cuda::glu(nullptr, out, a_dev, b_dev, gate); },
          [&](int64_t i) { return float64::activated(x(i), gate) * y(i); }, kFunctionError,
          [&](int64_t i) { return plain::glu(a.at(i), b.at(i), gate, dtype); });
    }
    // With this limit the factor, up + 1, is 0.25 or more, and its rounding small beside it.
    const SwiGluClamp clamp{1.702f, 0.75f};
    check(
        dtype,
        [&](Tensor out) {
          cuda::glu(nullptr, out, a_dev, b_dev, Activation::ClampedSwiGlu, clamp);
        },
        [&](int64_t i) { return float64::clamped_swiglu(x(i), y(i), clamp); }, kFunctionError);
    const auto with_bias = [&](int64_t i) { return x(i) + double(bias.at(i % dim)); };
    check(
        dtype, [&](Tensor out) { cuda::add_bias(nullptr, out, a_dev, bias_dev); }, with_bias, 0);
    for (const GeluKind kind : {GeluKind::Erf, GeluKind::Tanh}) {
      check(
          dtype, [&](Tensor out) { cuda::gelu(nullptr, out, a_dev, bias_dev, kind); },
          [&](int64_t i) { return float64::gelu(with_bias(i), kind); }, kFunctionError,
          [&](int64_t i) {
            return plain::gelu(plain::round(a.at(i) + bias.at(i % dim), dtype), kind, dtype);
          });
    }
    const DeviceTensor wide_dev = to_device(wide);
    check(
        DType::F32, [&](Tensor out) { cuda::add_bias(nullptr, out, wide_dev, bias_dev); },
        [&](int64_t i) { return w(i) + double(bias.at(i % dim)); }, 0);
    const auto capped = [&](float cap) {
      check(
          DType::F32,
          [&](Tensor out) {
            cuda::convert(nullptr, out, wide_dev);
            cuda::scale_and_cap(nullptr, out, -1.5f, cap);
          },
          [&](int64_t i) {
            const double scaled = -1.5 * w(i), c = double(cap);
            return cap == 0 ? scaled : c * std::tanh(scaled / c);
          },
          16 * kU);
    };
    capped(0);
    capped(0.5f);
    capped(20);
    check(
        DType::F32, [&](Tensor out) { cuda::add(nullptr, out, wide_dev, wide_dev); },
        [&](int64_t i) { return 2 * w(i); }, 0);
    check(
        dtype, [&](Tensor out) { cuda::convert(nullptr, out, wide_dev); }, w, 0);
    check(
        DType::F32, [&](Tensor out) { cuda::convert(nullptr, out, a_dev); }, x, 0);
  }
}

HostTensor row_of(const HostTensor& x, int64_t row) {
  const Tensor from = x.view().rows(row, 1);
  HostTensor to(from.dtype, {from.shape.last()});
  std::memcpy(to.view().data, from.data, size_t(from.n_bytes()));
  return to;
}
void append(float64::Values& to, const float64::Values& from) {
  to.insert(to.end(), from.begin(), from.end());
}

class CudaNorm : public testing::TestWithParam<std::tuple<DType, DType, int64_t, int64_t>> {};

// A sum of dim squares has an error of at most dim u in any order; scale, multiplications and bias
// add a few u.
TEST_P(CudaNorm, MatchesFloat64) {
  MINFER_NEEDS_CUDA();
  const auto [dtype, in_type, n_rows, dim] = GetParam();
  if (in_type != DType::F32 && in_type != dtype) GTEST_SKIP() << "no such pair of types";
  const Shape shape{n_rows, dim};
  HostTensor x = random_normal(1, shape, in_type);
  const HostTensor weight = random_normal(2, {dim}, dtype), bias = random_normal(3, {dim}, dtype);
  const HostTensor more = random_normal(4, shape, dtype);
  const DeviceTensor x_dev = to_device(x), w = to_device(weight), b = to_device(bias);
  constexpr float kEps = 1e-5f;
  const double relative = (0.5 * double(dim) + 16) * kU;
  const auto check = [&](auto&& launch, const float64::Values& want, double extra,
                         const float64::Values& plain) {
    const DeviceTensor out = poisoned_device(dtype, shape);
    launch(out);
    const HostTensor got = to_host(out);
    PlainErrors errors;
    for (size_t i = 0; i < want.size(); ++i) {
      const double magnitude = std::abs(want[i]) + std::abs(double(bias.at(int64_t(i) % dim)));
      ASSERT_NEAR(double(got.at(int64_t(i))), want[i],
                  rounding(dtype, want[i]) + (relative + extra) * (magnitude + 1))
          << "element " << i;
      errors.add(double(got.at(int64_t(i))), plain[i], want[i]);
    }
    errors.expect_within(dtype, "all elements");
  };
  check([&](Tensor out) { cuda::rms_norm(nullptr, out, x_dev, w, kEps); },
        float64::rms_norm(doubles(x), doubles(weight), double(kEps)), 0,
        plain::rms_norm(x, weight, kEps));
  if (n_rows % 2 == 0) {  // weights of their own for each of two heads
    const HostTensor weights = random_normal(5, {2, dim}, dtype);
    float64::Values want, plain_want;
    for (int64_t row = 0; row < n_rows; ++row) {
      const HostTensor x_row = row_of(x, row), weight_row = row_of(weights, row % 2);
      append(want, float64::rms_norm(doubles(x_row), doubles(weight_row), double(kEps)));
      append(plain_want, plain::rms_norm(x_row, weight_row, kEps));
    }
    const DeviceTensor both = to_device(weights);
    check([&](Tensor out) { cuda::rms_norm(nullptr, out, x_dev, both, kEps); }, want, 0,
          plain_want);
  }
  if (dim > 1) {  // with one element, the deviation is only rounding
    for (const bool with_bias : {false, true}) {
      const Tensor or_null = with_bias ? b.view() : Tensor{};
      const auto normed = float64::layer_norm(
          doubles(x), doubles(weight), with_bias ? doubles(bias) : float64::Values{}, double(kEps));
      const auto plain_normed = plain::layer_norm(x, weight, with_bias ? &bias : nullptr, kEps);
      check([&](Tensor out) { cuda::layer_norm(nullptr, out, x_dev, w, or_null, kEps); }, normed, 0,
            plain_normed);
      for (const GeluKind kind : {GeluKind::Erf, GeluKind::Tanh}) {
        float64::Values activated = normed;
        for (double& v : activated) v = float64::gelu(v, kind);
        float64::Values plain_activated = plain_normed;
        for (double& v : plain_activated) v = double(plain::gelu(float(v), kind, dtype));
        check(
            [&](Tensor out) { cuda::layer_norm_gelu(nullptr, out, x_dev, w, or_null, kEps, kind); },
            activated, kFunctionError, plain_activated);
      }
    }
  }
  if (in_type != DType::F32) return;
  const DeviceTensor residual = to_device(x), more_dev = to_device(more);
  float64::Values sum(size_t(n_rows * dim));
  for (int64_t i = 0; i < n_rows * dim; ++i) {
    x.as<float>()[i] += more.at(i);
    sum[size_t(i)] = double(x.at(i));
  }
  check([&](Tensor out) { cuda::add_rms_norm(nullptr, out, residual, more_dev, w, kEps); },
        float64::rms_norm(sum, doubles(weight), double(kEps)), 0, plain::rms_norm(x, weight, kEps));
  const HostTensor written = to_host(residual);
  for (int64_t i = 0; i < n_rows * dim; ++i) ASSERT_EQ(written.at(i), x.at(i)) << i;
}

// As on the CPU: distance from the maximum, exp, sum of n terms, quotient.
TEST_P(CudaNorm, SoftmaxMatchesFloat64) {
  MINFER_NEEDS_CUDA();
  const auto [dtype, in_type, n_rows, n] = GetParam();
  if (in_type == dtype) GTEST_SKIP() << "one case for each type";
  for (const DType type : {dtype, in_type}) {
    const HostTensor x = random_normal(1, {n_rows, n}, type, /*scale=*/10);
    const DeviceTensor out = poisoned_device(type, {n_rows, n});
    cuda::softmax(nullptr, out, to_device(x));
    const HostTensor got = to_host(out);
    const float64::Values x64 = doubles(x), want = float64::softmax(x64, size_t(n));
    const DType half = type == DType::F32 ? dtype : type;
    const float64::Values plain = plain::softmax(x64, size_t(n), half);
    PlainErrors errors;
    double max = 0;
    for (int64_t i = 0; i < n_rows * n; ++i) {
      const auto row = x64.begin() + i / n * n;
      if (i % n == 0) max = *std::max_element(row, row + n);
      const double distance = max - x64[size_t(i)];
      const double bound = (4 * distance + double(n) + 16) * kU * want[size_t(i)];
      ASSERT_NEAR(double(got.at(i)), want[size_t(i)],
                  rounding(type, want[size_t(i)]) + bound + kSmallestNormal)
          << "element " << i;
      errors.add(double(got.at(i)), plain[size_t(i)], want[size_t(i)]);
    }
    errors.expect_within(half, cat(type));
  }
}

// Rows of special values among many others, and of many lengths; out may be x.
TEST(CudaSoftmax, RowsKeepToThemselves) {
  MINFER_NEEDS_CUDA();
  for (const auto& [dtype, n_rows, n] :
       {std::tuple<DType, int64_t, int64_t>{DType::F32, 450, 32000},
        {DType::F16, 450, 32768},
        {DType::BF16, 2000, 4104},
        {DType::BF16, 20'000, 72},
        {DType::F32, 301, 2048},
        {DType::F32, 5, 40'000}}) {
    SCOPED_TRACE(cat(dtype, " [", n_rows, ", ", n, "]"));
    HostTensor x = random_normal(1, {n_rows, n}, dtype, /*scale=*/10);
    const auto set = [&](int64_t i, float value) {
      visit_float(dtype, [&]<typename T>() { x.as<T>()[i] = from_f32<T>(value); });
    };
    const int64_t with_nan = n_rows - 1, with_infinity = n_rows - 2, of_none = n_rows - 3;
    const int64_t of_one = n_rows - 4;
    set(with_nan * n + 5, NAN);
    set(with_infinity * n + 6, INFINITY);
    for (int64_t i = 0; i < n; ++i) {
      set(of_one * n + i, i == 7 ? 3.0f : -INFINITY);
      set(of_none * n + i, -INFINITY);
    }
    const DeviceTensor out = to_device(x);
    cuda::softmax(nullptr, out, out);
    const HostTensor got = to_host(out);
    for (int64_t row = 0; row < of_one; ++row) {
      double max = -INFINITY, sum = 0;
      for (int64_t i = row * n; i < (row + 1) * n; ++i) max = std::max(max, double(x.at(i)));
      for (int64_t i = row * n; i < (row + 1) * n; ++i) sum += std::exp(double(x.at(i)) - max);
      for (int64_t i = row * n; i < (row + 1) * n; ++i) {
        const double distance = max - double(x.at(i)), want = std::exp(-distance) / sum;
        const double bound = (4 * distance + double(n) + 16) * kU * want;
        ASSERT_NEAR(double(got.at(i)), want, rounding(dtype, want) + bound + kSmallestNormal)
            << "row " << row << ", " << i % n;
      }
    }
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(got.at(of_one * n + i), i == 7 ? 1 : 0) << i;
      ASSERT_TRUE(std::isnan(got.at(with_nan * n + i))) << i;
      ASSERT_TRUE(std::isnan(got.at(of_none * n + i))) << i;
      if (i == 6) {
        ASSERT_TRUE(std::isnan(got.at(with_infinity * n + i)));
      }
    }
  }
}

// Exponentials have the errors of a softmax; their sum adds an error of n u in any order.
TEST(CudaLikelihoods, MatchFloat64) {
  MINFER_NEEDS_CUDA();
  for (const int64_t n : {1, 37, 264, 32000}) {
    constexpr int64_t kRows = 5;
    constexpr int64_t kRowsInAll = kRows + 2;
    HostTensor x = random_normal(1, {kRowsInAll, n}, DType::F32, /*scale=*/10);
    for (int64_t i = 0; i < n / 2; ++i) x.as<float>()[3 * n + i] = -INFINITY;
    std::vector<int32_t> targets;
    for (int64_t row = 0; row < kRowsInAll; ++row) targets.push_back(int32_t(n - 1 - row % n));
    x.as<float>()[kRows * n + n / 2] = NAN;
    if (n > 1) x.as<float>()[(kRows + 1) * n + targets.back()] = -INFINITY;
    const DeviceTensor there = cuda::allocate_device(DType::F32, {kRowsInAll});  // 4 bytes each
    MINFER_CUDA_CHECK(cudaMemcpy(there.view().data, targets.data(), size_t(4 * kRowsInAll),
                                 cudaMemcpyHostToDevice));
    const DeviceTensor nll = poisoned_device(DType::F32, {kRowsInAll});
    MINFER_CUDA_CHECK(cudaDeviceSynchronize());
    cuda::negative_log_likelihoods(nullptr, nll, to_device(x),
                                   static_cast<const int32_t*>(there.view().data));
    const HostTensor got = to_host(nll);
    EXPECT_TRUE(std::isnan(got.at(kRows))) << n;
    if (n > 1) {
      EXPECT_EQ(got.at(kRows + 1), INFINITY) << n;
    }
    for (int64_t row = 0; row < kRows; ++row) {
      double max = -INFINITY, sum = 0, distances = 0;
      for (int64_t i = 0; i < n; ++i) max = std::max(max, double(x.at(row * n + i)));
      for (int64_t i = 0; i < n; ++i) {
        const double distance = max - double(x.at(row * n + i)), p = std::exp(-distance);
        sum += p;
        if (p > 0) distances += p * distance;
      }
      const double target = double(x.at(row * n + targets[size_t(row)]));
      const double of_sum = 4 * distances / sum + double(n) + 16;
      ASSERT_NEAR(double(got.at(row)), max - target + std::log(sum),
                  (of_sum + 4 * (std::abs(max) + std::abs(target) + std::log(sum))) * kU)
          << n << ", row " << row;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaElementwise, testing::Values(DType::F16, DType::BF16));
INSTANTIATE_TEST_SUITE_P(Shapes, CudaNorm,
                         testing::Combine(testing::Values(DType::F16, DType::BF16),
                                          testing::Values(DType::F32, DType::F16, DType::BF16),
                                          testing::Values(1, 3, 40),
                                          testing::Values(1, 8, 37, 128, 200, 264, 4096, 11008,
                                                          16384, 20000)));

TEST(CudaFinite, FindsTheFirstThatIsNot) {
  MINFER_NEEDS_CUDA();
  const DeviceTensor found = poisoned_device(DType::U8, {8});
  const auto first = [&](const HostTensor& x) {
    cuda::find_non_finite(nullptr, static_cast<int64_t*>(found.view().data), to_device(x));
    int64_t index = 0;
    std::memcpy(&index, to_host(found).view().data, sizeof index);
    return index;
  };
  for (const int64_t n : {1'000'003, 1'000'004}) {
    HostTensor x = random_normal(1, {n});
    EXPECT_EQ(first(x), n);
    for (const int64_t at : {n - 1, n - 2, n - 3, n - 4, int64_t{777}}) {
      x.as<float>()[at] = at == n - 1 ? std::nanf("") : -INFINITY;
      EXPECT_EQ(first(x), at) << n;
    }
  }
}

TEST(CudaDevice, RefusesACardThatIsNotThere) {
  MINFER_NEEDS_CUDA();
  EXPECT_THROW(make_cuda_backend({.device = 1000}), Error);
}

}  // namespace
}  // namespace minfer::test
