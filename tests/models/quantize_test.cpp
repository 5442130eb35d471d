#include "models/quantize/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/expect_error.h"
#include "tests/support/tensors.h"

namespace minfer {
namespace {

using namespace test;

constexpr QuantizeMethod kMethods[] = {QuantizeMethod::Rtn, QuantizeMethod::Rtn16,
                                       QuantizeMethod::Mse};

// One group as code, scale and zero.
struct Group {
  std::vector<int> codes;  // minus the zero
  double scale, zero;
};

// Quantizes one row that is one group.
Group quantize_group(const std::vector<float>& weights, QuantizeFormat format,
                     QuantizeMethod method) {
  const auto n = static_cast<int64_t>(weights.size());
  format.group = n;
  const HostQuantizedMatrix q =
      quantize_matrix(from_values(weights, {1, n}), format, method, /*n_threads=*/1);
  Group group;
  group.scale = double{q.scales.at(0)};
  group.zero = format.bits == 8 ? 128 : 8;
  if (format.asymmetric) group.zero = group.scale == 0 ? 0 : -double{q.mins.at(0)} / group.scale;
  const auto* bytes = static_cast<const uint8_t*>(q.codes.view().data);
  for (int64_t i = 0; i < n; ++i) {
    const int code = format.bits == 8 ? bytes[i] : bytes[i / 2] >> (i % 2 * 4) & 15;
    group.codes.push_back(code - int(group.zero));
  }
  return group;
}

double squared_error(const std::vector<float>& weights, const Group& group) {
  double sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double difference = double{weights[i]} - group.scale * group.codes[i];
    sum += difference * difference;
  }
  return sum;
}

// Least squared error with codes in [low, high] over every f16 scale that is at least 1/16 of the
// largest magnitude: a search without any cleverness.
double best_error(const std::vector<float>& weights, int low, int high) {
  float largest = 0;
  for (float w : weights) largest = std::max(largest, std::abs(w));
  double best = INFINITY;
  for (uint16_t bits = to_f16(largest / 24).bits; to_f32(f16{bits}) <= largest / 4; ++bits) {
    const double scale = double{to_f32(f16{bits})};
    if (scale == 0) continue;
    double error = 0;
    for (float w : weights) {
      const double code = std::clamp(std::nearbyint(double{w} / scale), double(low), double(high));
      error += (double{w} - scale * code) * (double{w} - scale * code);
    }
    best = std::min(best, error);
  }
  return best;
}

double best_symmetric_error(const std::vector<float>& weights) {
  return std::min(best_error(weights, -8, 7), best_error(weights, -7, 8));
}

double best_asymmetric_error(const std::vector<float>& weights) {
  double best = INFINITY;
  for (int zero = 0; zero <= 15; ++zero) {
    best = std::min(best, best_error(weights, -zero, 15 - zero));
  }
  return best;
}

std::vector<float> random_weights(uint64_t seed, int64_t n, float scale = 0.02f,
                                  float outlier = 1) {
  const HostTensor tensor = random_normal(seed, {n}, DType::F32, scale);
  std::vector<float> weights(tensor.as<float>(), tensor.as<float>() + n);
  weights[0] *= outlier;
  return weights;
}

TEST(Quantize, RtnIsItsDefinition) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<float> w = random_weights(seed, 32);
    const Group group = quantize_group(w, {}, QuantizeMethod::Rtn);
    float largest = 0;
    for (float x : w) largest = std::max(largest, std::abs(x));
    EXPECT_EQ(group.scale, double{to_f32(to_f16(largest / 7))});
    for (size_t i = 0; i < w.size(); ++i) {
      EXPECT_EQ(group.codes[i], std::clamp(std::nearbyint(double{w[i]} / group.scale), -7.0, 7.0));
    }
  }
}

TEST(Quantize, Rtn16PutsTheExtremeOnTheLowestCode) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<float> w = random_weights(seed, 32, 0.02f, 4);
    const Group group = quantize_group(w, {}, QuantizeMethod::Rtn16);
    size_t extreme = 0;
    for (size_t i = 0; i < w.size(); ++i) {
      if (std::abs(w[i]) > std::abs(w[extreme])) extreme = i;
    }
    EXPECT_EQ(group.scale, double{to_f32(to_f16(w[extreme] / -8))});
    EXPECT_EQ(group.codes[extreme], -8);
    for (size_t i = 0; i < w.size(); ++i) {
      EXPECT_EQ(group.codes[i], std::clamp(std::nearbyint(double{w[i]} / group.scale), -8.0, 7.0));
    }
  }
}

TEST(Quantize, AsymmetricRtnReachesFromTheLeastToTheLargest) {
  std::vector<float> w = random_weights(3, 32, 0.1f);
  for (float& x : w) x += 0.15f;
  const Group group = quantize_group(w, {.asymmetric = true}, QuantizeMethod::Rtn);
  const float low = *std::ranges::min_element(w), high = *std::ranges::max_element(w);
  ASSERT_LT(low, 0);
  EXPECT_EQ(group.scale, double{to_f32(to_f16((high - low) / 15))});
  EXPECT_EQ(group.zero, std::nearbyint(double{-low} / group.scale));
  for (size_t i = 0; i < w.size(); ++i) {
    EXPECT_EQ(group.codes[i],
              std::clamp(std::nearbyint(double{w[i]} / group.scale), -group.zero, 15 - group.zero));
  }
}

TEST(Quantize, EightBitsAreSymmetric) {
  const std::vector<float> w = random_weights(4, 64);
  float largest = 0;
  for (float x : w) largest = std::max(largest, std::abs(x));
  for (const QuantizeMethod method : {QuantizeMethod::Rtn, QuantizeMethod::Rtn16}) {
    const Group group = quantize_group(w, {.bits = 8}, method);
    EXPECT_EQ(group.scale, double{to_f32(to_f16(largest / 127))});
    for (size_t i = 0; i < w.size(); ++i) {
      EXPECT_EQ(group.codes[i], std::nearbyint(double{w[i]} / group.scale));
    }
  }
  const double searched = squared_error(w, quantize_group(w, {.bits = 8}, QuantizeMethod::Mse));
  EXPECT_LE(searched, squared_error(w, quantize_group(w, {.bits = 8}, QuantizeMethod::Rtn)));
  EXPECT_LE(searched, 1.01 * best_error(w, -127, 127));
}

// Groups whose best scale lies at different places: plain ones, with an outlier, of one sign.
std::vector<std::vector<float>> varied_groups(int64_t n) {
  std::vector<std::vector<float>> groups;
  for (uint64_t seed = 0; seed < 24; ++seed) {
    groups.push_back(random_weights(seed, n, 0.02f, seed % 3 == 0 ? 1.0f : float(seed)));
    if (seed % 4 == 0) {
      for (float& w : groups.back()) w = std::abs(w);
    }
  }
  return groups;
}

TEST(Quantize, MseFindsTheLeastSquaredError) {
  for (const int64_t n : {32, 64, 128}) {
    double found = 0, best = 0;
    for (const std::vector<float>& w : varied_groups(n)) {
      const double error = squared_error(w, quantize_group(w, {}, QuantizeMethod::Mse));
      const double least = best_symmetric_error(w);
      EXPECT_LE(error, 1.03 * least) << n;
      EXPECT_LE(error, squared_error(w, quantize_group(w, {}, QuantizeMethod::Rtn16)));
      found += error;
      best += least;
    }
    EXPECT_LE(found, 1.01 * best) << n;
  }
}

TEST(Quantize, AsymmetricMseFindsTheLeastSquaredError) {
  const QuantizeFormat format = {.asymmetric = true};
  for (const int64_t n : {32, 128}) {
    double found = 0, best = 0;
    for (const std::vector<float>& w : varied_groups(n)) {
      const double error = squared_error(w, quantize_group(w, format, QuantizeMethod::Mse));
      EXPECT_LE(error, squared_error(w, quantize_group(w, format, QuantizeMethod::Rtn)));
      found += error;
      best += best_asymmetric_error(w);
    }
    EXPECT_LE(found, 1.01 * best) << n;
  }
}

TEST(Quantize, TiesGoToTheEvenCode) {
  // scale 1: the extreme of -8 and, for rtn, of 7
  const std::vector<float> w = {-8, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 6.5f};
  EXPECT_EQ(quantize_group(w, {}, QuantizeMethod::Rtn16).codes,
            (std::vector<int>{-8, 0, 2, 2, 0, -2, -2, 6}));
}

TEST(Quantize, ZerosStayZeros) {
  for (const QuantizeMethod method : kMethods) {
    for (const QuantizeFormat& format :
         {QuantizeFormat{}, QuantizeFormat{.bits = 8}, QuantizeFormat{.asymmetric = true}}) {
      const Group group = quantize_group(std::vector<float>(32, 0.0f), format, method);
      EXPECT_EQ(group.scale, 0);
      EXPECT_EQ(group.codes, std::vector<int>(32, 0));
    }
  }
}

TEST(Quantize, EqualWeightsAreExactButForTheScale) {
  for (const float value : {0.5f, -0.5f}) {
    const std::vector<float> w(32, value);
    EXPECT_EQ(squared_error(w, quantize_group(w, {}, QuantizeMethod::Mse)), 0);
    const double rounding = 32 * std::pow(0.5 * unit_roundoff(DType::F16), 2);
    EXPECT_LE(squared_error(w, quantize_group(w, {.asymmetric = true}, QuantizeMethod::Mse)),
              rounding);
  }
}

// Where f16 has few digits left, the search must go by the scale that is stored.
TEST(Quantize, SmallScalesAreThoseThatAreStored) {
  for (const float magnitude : {2e-4f, 1e-5f, 2e-6f, 4e-7f}) {
    const std::vector<float> w = random_weights(7, 32, magnitude);
    const double error = squared_error(w, quantize_group(w, {}, QuantizeMethod::Mse));
    EXPECT_LE(error, 1.01 * best_symmetric_error(w)) << magnitude;
  }
  const std::vector<float> tiny(32, 6e-8f);  // the smallest f16
  EXPECT_LT(squared_error(tiny, quantize_group(tiny, {}, QuantizeMethod::Rtn)), 1e-17);
  const std::vector<float> nothing(32, 1e-30f);
  for (const QuantizeMethod method : kMethods) {
    EXPECT_EQ(quantize_group(nothing, {}, method).codes, std::vector<int>(32, 0));
  }
}

TEST(Quantize, HugeWeightsAreRefused) {
  std::vector<float> w(64, 65504.0f);
  EXPECT_EQ(squared_error(w, quantize_group(w, {}, QuantizeMethod::Mse)), 0);
  for (const float bad : {65505.0f, -3e38f, INFINITY, std::nanf("")}) {
    w[40] = bad;
    expect_error(ErrorKind::Input, "row 1, column 8: ", [&] {
      quantize_matrix(from_values(w, {2, 32}), {.group = 32}, QuantizeMethod::Mse, 2);
    });
  }
}

std::string bytes_of_matrix(const HostQuantizedMatrix& q) {
  std::string bytes;
  for (const Tensor& part : {q.codes.view(), q.scales.view(), q.mins.view()}) {
    if (part) bytes.append(static_cast<const char*>(part.data), size_t(part.n_bytes()));
  }
  return bytes;
}

TEST(Quantize, BytesDoNotDependOnThreads) {
  const HostTensor w = random_normal(1, {1500, 384}, DType::BF16, 0.05f);  // three pieces of rows
  for (const QuantizeFormat& format :
       {QuantizeFormat{.group = 64}, QuantizeFormat{.bits = 8, .group = 0},
        QuantizeFormat{.group = 128, .asymmetric = true}}) {
    const HostQuantizedMatrix one = quantize_matrix(w, format, QuantizeMethod::Mse, 1);
    const HostQuantizedMatrix three = quantize_matrix(w, format, QuantizeMethod::Mse, 3);
    EXPECT_EQ(bytes_of_matrix(one), bytes_of_matrix(three));
    EXPECT_EQ(quantization_error(w, one.view(), 1).squared_error,
              quantization_error(w, one.view(), 3).squared_error);
  }
}

// Any rows of a matrix give what they give in the whole of it.
TEST(Quantize, RowsAreIndependent) {
  const HostTensor w = random_normal(2, {11, 64}, DType::F16, 0.05f);
  const QuantizeFormat format = {.group = 32};
  const HostQuantizedMatrix whole = quantize_matrix(w, format, QuantizeMethod::Mse, 1);
  for (int64_t row = 0; row < 11; ++row) {
    const HostQuantizedMatrix part =
        quantize_matrix(w.view().rows(row, 1), format, QuantizeMethod::Mse, 1);
    const Tensor codes = whole.view().codes.rows(row, 1);
    EXPECT_EQ(0, std::memcmp(part.codes.view().data, codes.data, size_t(codes.n_bytes())));
    for (int64_t g = 0; g < 2; ++g) EXPECT_EQ(part.scales.at(g), whole.scales.at(row * 2 + g));
  }
}

TEST(Quantize, ErrorIsThatOfTheStoredMatrix) {
  const HostTensor w = random_normal(5, {6, 64}, DType::F32, 0.05f);
  const HostQuantizedMatrix q = quantize_matrix(w, {.group = 32}, QuantizeMethod::Rtn, 1);
  const QuantizationError error = quantization_error(w, q.view(), 1);
  double squared = 0, weights = 0, largest = 0;
  std::vector<float> row(64);
  for (int64_t i = 0; i < 6; ++i) {
    dequantize_row(row.data(), q.view(), i);
    for (int64_t j = 0; j < 64; ++j) {
      const double x = double{w.at(i * 64 + j)}, difference = x - double{row[size_t(j)]};
      squared += difference * difference;
      weights += x * x;
      largest = std::max(largest, std::abs(difference));
    }
  }
  EXPECT_NEAR(error.squared_error, squared, 1e-12 * squared);
  EXPECT_EQ(error.largest_error, largest);
  EXPECT_NEAR(error.relative_rms(), std::sqrt(squared / weights), 1e-9);
}

}  // namespace
}  // namespace minfer
