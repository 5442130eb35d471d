#include "models/gptq.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "models/quantize.h"
#include "tests/support/expect_error.h"
#include "tests/support/tensors.h"

namespace minfer {
namespace {

using namespace test;

// Inputs [n, in] whose columns go together: each is half of the one before it and half noise, and
// later columns are larger.
HostTensor correlated_inputs(int64_t n, int64_t in_dim) {
  HostTensor x = random_normal(5, {n, in_dim}, DType::F32, 1.0f);
  for (int64_t row = 0; row < n; ++row) {
    float* const v = x.as<float>() + row * in_dim;
    for (int64_t i = 1; i < in_dim; ++i) v[i] = (v[i - 1] + v[i]) / 2;
    for (int64_t i = 0; i < in_dim; ++i) v[i] *= 1 + float(i % 7) / 2;
  }
  return x;
}

HostTensor hessian_of(const HostTensor& x) {
  const int64_t n = x.view().shape[0], in_dim = x.view().shape[1];
  HostTensor h(DType::F32, {in_dim, in_dim});
  for (int64_t i = 0; i < in_dim; ++i) {
    for (int64_t j = 0; j < in_dim; ++j) {
      double sum = 0;
      for (int64_t row = 0; row < n; ++row) {
        sum += double{x.at(row * in_dim + i)} * double{x.at(row * in_dim + j)};
      }
      h.as<float>()[i * in_dim + j] = float(sum);
    }
  }
  return h;
}

// sum over inputs and rows of ((w - q) x)^2
double output_error(const HostTensor& w, const HostQuantizedMatrix& q, const HostTensor& x) {
  const int64_t out_dim = w.view().shape[0], in_dim = w.view().shape[1];
  std::vector<float> restored(size_t(in_dim), NAN);
  double total = 0;
  for (int64_t row = 0; row < out_dim; ++row) {
    dequantize_row(restored.data(), q.view(), row);
    for (int64_t t = 0; t < x.view().shape[0]; ++t) {
      double sum = 0;
      for (int64_t i = 0; i < in_dim; ++i) {
        sum += (double{w.at(row * in_dim + i)} - double{restored[size_t(i)]}) *
               double{x.at(t * in_dim + i)};
      }
      total += sum * sum;
    }
  }
  return total;
}

TEST(Gptq, FactorIsThatOfTheInverse) {
  constexpr int64_t kIn = 48;
  const HostTensor h = hessian_of(correlated_inputs(100, kIn));
  const InverseFactor factor = make_inverse_factor(h, 2);
  double mean = 0;
  for (int64_t i = 0; i < kIn; ++i) mean += double{h.at(i * kIn + i)} / kIn;
  const auto u = [&](int64_t i, int64_t j) { return double{factor.upper[size_t(i * kIn + j)]}; };
  // (H + damping) U^T U = 1, in the factor's order.
  for (int64_t i = 0; i < kIn; ++i) {
    for (int64_t j = 0; j < kIn; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < kIn; ++k) {
        const int64_t row = factor.order[size_t(i)], column = factor.order[size_t(k)];
        const double damped = double{h.at(row * kIn + column)} + (i == k ? 0.01 * mean : 0);
        double inverse = 0;
        for (int64_t l = 0; l <= std::min(k, j); ++l) inverse += u(l, k) * u(l, j);
        sum += damped * inverse;
      }
      EXPECT_NEAR(sum, i == j ? 1 : 0, 1e-4) << i << ", " << j;
      if (i > j) {
        EXPECT_EQ(u(i, j), 0) << i << ", " << j;
      }
    }
    if (i > 0) {
      const int64_t before = factor.order[size_t(i - 1)], here = factor.order[size_t(i)];
      EXPECT_GE(h.at(before * kIn + before), h.at(here * kIn + here));
    }
  }
}

TEST(Gptq, OutputsComeNearerThanByRounding) {
  constexpr int64_t kIn = 128;
  const HostTensor x = correlated_inputs(300, kIn);
  const HostTensor w = random_normal(6, {24, kIn}, DType::F32, 0.1f);
  const InverseFactor factor = make_inverse_factor(hessian_of(x), 1);
  for (const bool asymmetric : {false, true}) {
    const QuantizeFormat format = {.bits = 4, .group = 32, .asymmetric = asymmetric};
    const auto error = [&](const InverseFactor* f) {
      return output_error(w, quantize_matrix(w, format, QuantizeMethod::Mse, 1, f), x);
    };
    EXPECT_LT(error(&factor), 0.6 * error(nullptr)) << asymmetric;
  }
}

// Where no input goes with another there is nothing to make up for.
TEST(Gptq, IndependentInputsGiveTheNearestLevels) {
  constexpr int64_t kIn = 64;
  HostTensor h(DType::F32, {kIn, kIn});
  for (int64_t i = 0; i < kIn * kIn; ++i) h.as<float>()[i] = i % (kIn + 1) == 0 ? 3.0f : 0.0f;
  h.as<float>()[0] = 0;  // an input that is always zero
  const HostTensor w = random_normal(7, {9, kIn}, DType::F32, 1.0f);
  const InverseFactor factor = make_inverse_factor(h, 1);
  const QuantizeFormat format = {.bits = 4, .group = 32, .asymmetric = false};
  const auto bytes = [&](const InverseFactor* f, int n_threads) {
    const HostQuantizedMatrix q = quantize_matrix(w, format, QuantizeMethod::Mse, n_threads, f);
    return std::string(static_cast<const char*>(q.levels.view().data),
                       size_t(q.levels.view().n_bytes()));
  };
  EXPECT_EQ(bytes(&factor, 1), bytes(nullptr, 1));
  EXPECT_EQ(bytes(&factor, 2), bytes(&factor, 1));
}

TEST(Gptq, WhatIsNoHessianIsRefused) {
  HostTensor h(DType::F32, {2, 2});
  const float values[] = {1, 4, 4, 1};
  std::memcpy(h.view().data, values, sizeof values);
  expect_error(ErrorKind::Numeric, "not positive definite", [&] { make_inverse_factor(h, 1); });
}

}  // namespace
}  // namespace minfer
