#include "models/quantize/gptq.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "models/quantize/feedback_scale.h"
#include "models/quantize/quantize.h"
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

std::string codes_of(const HostQuantizedMatrix& q) {
  return {static_cast<const char*>(q.codes.view().data), size_t(q.codes.view().n_bytes())};
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

InverseFactor factor_of(const HostTensor& x, int64_t group, double damping = kFeedbackDamping) {
  return make_inverse_factor(hessian_of(x), group, damping, 2);
}

TEST(Gptq, FactorIsThatOfTheInverse) {
  constexpr int64_t kIn = 48;
  constexpr double kDamping = 0.02;
  const HostTensor x = correlated_inputs(100, kIn), h = hessian_of(x);
  const InverseFactor factor = factor_of(x, kIn, kDamping);
  double mean = 0;
  for (int64_t i = 0; i < kIn; ++i) mean += double{h.at(i * kIn + i)} / kIn;
  const auto u = [&](int64_t i, int64_t j) { return double{factor.upper[size_t(i * kIn + j)]}; };
  // (H + damping) U^T U = 1, in the factor's order.
  for (int64_t i = 0; i < kIn; ++i) {
    for (int64_t j = 0; j < kIn; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < kIn; ++k) {
        const int64_t row = factor.order[size_t(i)], column = factor.order[size_t(k)];
        const double damped = double{h.at(row * kIn + column)} + (i == k ? kDamping * mean : 0);
        double inverse = 0;
        for (int64_t l = 0; l <= std::min(k, j); ++l) inverse += u(l, k) * u(l, j);
        sum += damped * inverse;
      }
      EXPECT_NEAR(sum, i == j ? 1 : 0, 1e-4) << i << ", " << j;
      if (i > j) {
        EXPECT_EQ(u(i, j), 0) << i << ", " << j;
      }
    }
  }
}

TEST(Gptq, GroupsAndTheirColumnsComeByFallingWeight) {
  const float diagonal[] = {1, 5, 2, 2, 9, 3, 0, 4};  // sums of the pairs: 6, 4, 12, 4
  HostTensor h(DType::F32, {8, 8});
  for (int64_t i = 0; i < 64; ++i) h.as<float>()[i] = i % 9 == 0 ? diagonal[i / 9] : 0.0f;
  const auto order = [&](int64_t group) {
    return make_inverse_factor(h, group, kFeedbackDamping, 1).order;
  };
  EXPECT_EQ(order(2), (std::vector<int64_t>{4, 5, 1, 0, 2, 3, 7, 6}));
  EXPECT_EQ(order(8), (std::vector<int64_t>{4, 1, 7, 5, 2, 3, 0, 6}));
}

// sum over a group of the squared errors with feedback, in units of U's diagonal.
double loss_of(const FeedbackGroup& group, const GroupScale& scale) {
  std::vector<float> left(group.weights, group.weights + group.size);
  double loss = 0;
  for (int64_t j = 0; j < group.size; ++j) {
    const float* const u = group.upper + j * (group.n + 1);
    const float stored = scale.scale * float(int{code_of(left[size_t(j)], scale)} - scale.zero);
    const float error = (left[size_t(j)] - stored) / u[0];
    loss += double{error} * double{error};
    for (int64_t k = j + 1; k < group.size; ++k) left[size_t(k)] -= error * u[k - j];
  }
  return loss;
}

TEST(Gptq, ScaleHasTheLeastLossOfThoseTried) {
  constexpr int64_t kIn = 32;
  const InverseFactor factor = factor_of(correlated_inputs(300, kIn), kIn);
  const HostTensor w = random_normal(8, {20, kIn}, DType::F32, 0.1f);
  int n_better = 0, n_mirrored = 0;
  for (int64_t row = 0; row < 20; ++row) {
    const FeedbackGroup group = {w.as<float>() + row * kIn, kIn, factor.upper.data(), kIn};
    GroupScale least_error;
    choose_scales(&least_error, group.weights, 1, kIn, kIn,
                  {.bits = 4, .group = kIn, .asymmetric = false}, QuantizeMethod::Mse);
    const GroupScale same_sign = scale_of_least_loss(group, least_error, false),
                     chosen = scale_of_least_loss(group, least_error, true);
    const double loss = loss_of(group, chosen);
    EXPECT_GT(same_sign.scale * least_error.scale, 0);
    EXPECT_LE(loss, loss_of(group, same_sign) * 1.0001);
    for (const float factor_of_scale : {-1.12f, -0.94f, 0.79f, 0.88f, 1.0f, 1.06f, 1.21f}) {
      GroupScale other = least_error;
      other.scale = stored_scale(other.scale * factor_of_scale);
      EXPECT_LE(loss, loss_of(group, other) * 1.0001) << row << ", " << factor_of_scale;
    }
    n_better += loss < 0.95 * loss_of(group, least_error);
    n_mirrored += chosen.scale * least_error.scale < 0;
  }
  EXPECT_GT(n_better, 10);
  EXPECT_GT(n_mirrored, 0);
}

TEST(Gptq, OutputsComeNearerThanByRounding) {
  constexpr int64_t kIn = 128;
  const HostTensor x = correlated_inputs(300, kIn);
  const HostTensor w = random_normal(6, {24, kIn}, DType::F32, 0.1f);
  const InverseFactor factor = factor_of(x, 32);
  const GptqInputs inputs = {.feedback = &factor, .correction = nullptr, .drift = {}};
  for (const bool asymmetric : {false, true}) {
    const QuantizeFormat format = {.bits = 4, .group = 32, .asymmetric = asymmetric};
    const auto error = [&](const GptqInputs* gptq) {
      return output_error(w, quantize_matrix(w, format, QuantizeMethod::Mse, 1, gptq), x);
    };
    EXPECT_LT(error(&inputs), 0.55 * error(nullptr)) << asymmetric;
  }
}

// Weights that see other inputs than those that the outputs to come near to were made of.
TEST(Gptq, DriftIsFollowed) {
  constexpr int64_t kIn = 32, kRows = 5, kTokens = 200;
  const HostTensor x = correlated_inputs(kTokens, kIn),
                   noise = random_normal(9, {kTokens, kIn}, DType::F32, 0.3f);
  const HostTensor w = random_normal(10, {kRows, kIn}, DType::F32, 1.0f);
  HostTensor moved = random_normal(10, {kRows, kIn}, DType::F32, 1.0f);
  // sum (y - w x) x^T with y = w (x + noise)
  const auto drift_of = [&](const HostTensor& weights) {
    std::vector<float> drift(kRows * kIn);
    for (int64_t i = 0; i < kRows * kIn; ++i) {
      double sum = 0;
      for (int64_t t = 0; t < kTokens; ++t) {
        double difference = 0;
        for (int64_t k = 0; k < kIn; ++k) {
          const auto original = double{x.at(t * kIn + k)} + double{noise.at(t * kIn + k)};
          difference += double{w.at(i / kIn * kIn + k)} * original -
                        double{weights.at(i / kIn * kIn + k)} * double{x.at(t * kIn + k)};
        }
        sum += difference * double{x.at(t * kIn + i % kIn)};
      }
      drift[size_t(i)] = float(sum);
    }
    return drift;
  };
  const std::vector<float> before = drift_of(w);
  follow_drift({moved.as<float>(), size_t(kRows * kIn)}, before, factor_of(x, 8, 1e-9));
  const std::vector<float> after = drift_of(moved);
  for (size_t i = 0; i < after.size(); ++i) {
    EXPECT_NEAR(after[i], 0, 1e-3 * std::abs(before[0])) << i;
  }

  const InverseFactor factor = factor_of(x, 8);
  HostTensor drift(DType::F32, {kRows, kIn});
  std::ranges::copy(before, drift.as<float>());
  const GptqInputs with = {.feedback = &factor, .correction = &factor, .drift = drift};
  const GptqInputs of_moved = {.feedback = &factor, .correction = nullptr, .drift = {}};
  moved = random_normal(10, {kRows, kIn}, DType::F32, 1.0f);
  follow_drift({moved.as<float>(), size_t(kRows * kIn)}, before, factor);
  const QuantizeFormat format = {.bits = 4, .group = 8, .asymmetric = false};
  EXPECT_EQ(codes_of(quantize_matrix(w, format, QuantizeMethod::Mse, 2, &with)),
            codes_of(quantize_matrix(moved, format, QuantizeMethod::Mse, 1, &of_moved)));
}

// Where no input goes with another there is nothing to make up for.
TEST(Gptq, IndependentInputsGiveTheNearestCodes) {
  constexpr int64_t kIn = 64;
  HostTensor h(DType::F32, {kIn, kIn});
  for (int64_t i = 0; i < kIn * kIn; ++i) h.as<float>()[i] = i % (kIn + 1) == 0 ? 3.0f : 0.0f;
  h.as<float>()[0] = 0;  // an input that is always zero
  const HostTensor w = random_normal(7, {9, kIn}, DType::F32, 1.0f);
  const InverseFactor factor = make_inverse_factor(h, 32, kFeedbackDamping, 1);
  const GptqInputs inputs = {.feedback = &factor, .correction = nullptr, .drift = {}};
  const QuantizeFormat format = {.bits = 4, .group = 32, .asymmetric = false};
  const HostQuantizedMatrix q = quantize_matrix(w, format, QuantizeMethod::Mse, 1, &inputs);
  std::vector<float> restored(kIn);
  for (int64_t row = 0; row < 9; ++row) {
    dequantize_row(restored.data(), q.view(), row);
    for (int64_t i = 0; i < kIn; ++i) {
      const float scale = q.scales.at(row * 2 + i / 32), weight = w.at(row * kIn + i);
      const float code = std::clamp(std::nearbyint(weight / scale), -8.0f, 7.0f);
      EXPECT_EQ(restored[size_t(i)], code * scale) << row << ", " << i;
    }
  }
  EXPECT_EQ(codes_of(quantize_matrix(w, format, QuantizeMethod::Mse, 2, &inputs)), codes_of(q));
}

TEST(Gptq, WhatIsNoHessianIsRefused) {
  HostTensor h(DType::F32, {2, 2});
  const float values[] = {1, 4, 4, 1};
  std::memcpy(h.view().data, values, sizeof values);
  expect_error(ErrorKind::Numeric, "not positive definite",
               [&] { make_inverse_factor(h, 2, kFeedbackDamping, 1); });
}

}  // namespace
}  // namespace minfer
