#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/cuda/launchers.h"
#include "tests/support/float64_ops.h"
#include "tests/support/tensors.h"

// A plain program in half that kernels are compared with, besides float64: one operation after
// another. Every tensor between two operations is rounded to half; within one, arithmetic is f32,
// in natural order.
namespace minfer::test {

// What storing a value as this type may change it by.
inline double rounding(DType dtype, double want) {
  const double subnormal = dtype == DType::F16 ? 0x1p-25 : dtype == DType::BF16 ? 1e-40 : 1e-45;
  return unit_roundoff(dtype) * std::abs(want) + subnormal;
}

// The errors of a kernel and of the plain program against float64, over elements of one output.
class PlainErrors {
 public:
  void add(double got, double plain, double want) {
    ++n_;
    got_ += (got - want) * (got - want);
    plain_ += (plain - want) * (plain - want);
    want_ += want * want;
  }

  // Checks nothing for few elements, whose errors may be small by chance. The plain program itself
  // must be sound: it errs by about ten roundings of half, not more.
  void expect_within(DType half, const std::string& what) const {
    constexpr int64_t kFewest = 64;
    if (n_ < kFewest) return;
    EXPECT_LE(std::sqrt(got_), kMostOfPlain * std::sqrt(plain_)) << what << ": against plain half";
    EXPECT_LE(std::sqrt(plain_), 16 * unit_roundoff(half) * std::sqrt(want_)) << what << ": plain";
  }

 private:
  int64_t n_ = 0;
  double got_ = 0, plain_ = 0, want_ = 0;  // sums of squares
};

namespace plain {

inline float round(float x, DType half) { return float(rounded(double(x), half)); }

inline float silu(float x, DType half) { return round(x / (1 + std::exp(-x)), half); }

inline float gelu(float x, GeluKind kind, DType half) {
  const float u = 0.79788456f * (x + 0.044715f * x * x * x);
  const float sign = kind == GeluKind::Erf ? std::erf(x * 0.70710678f) : std::tanh(u);
  return round(0.5f * x * (1 + sign), half);
}

inline float glu(float gate, float up, Activation activation, DType half) {
  const float factor =
      activation == Activation::Silu ? silu(gate, half) : gelu(gate, gelu_kind(activation), half);
  return round(factor * up, half);
}

// The activation of a gate in an epilogue.
inline Activation gate_of(cuda::Epilogue epilogue) {
  return epilogue == cuda::Epilogue::SwiGlu     ? Activation::Silu
         : epilogue == cuda::Epilogue::GeGluErf ? Activation::GeluErf
                                                : Activation::GeluTanh;
}

// The result of an epilogue for x wᵀ + bias, summed in f32.
inline float finish(cuda::Epilogue epilogue, float sum, float up, float residual, DType half) {
  const float y = round(sum, half);
  switch (epilogue) {
    case cuda::Epilogue::Store:
      return y;
    case cuda::Epilogue::Accumulate:
      return round(residual + y, half);
    case cuda::Epilogue::SwiGlu:
    case cuda::Epilogue::GeGluErf:
    case cuda::Epilogue::GeGluTanh:
      return glu(y, round(up, half), gate_of(epilogue), half);
    case cuda::Epilogue::GeluErf:
      return gelu(y, GeluKind::Erf, half);
    case cuda::Epilogue::GeluTanh:
      return gelu(y, GeluKind::Tanh, half);
  }
  return NAN;
}

// As the public implementations do, rounds the normed x before it multiplies by the weight.
inline float64::Values rms_norm(const HostTensor& x, const HostTensor& weight, float eps) {
  const DType half = weight.view().dtype;
  const int64_t dim = weight.view().n_elements();
  float64::Values out;
  for (int64_t row = 0; row < x.view().n_elements(); row += dim) {
    float sum_sq = 0;
    for (int64_t i = 0; i < dim; ++i) sum_sq += x.at(row + i) * x.at(row + i);
    const float scale = 1 / std::sqrt(sum_sq / float(dim) + eps);
    for (int64_t i = 0; i < dim; ++i)
      out.push_back(rounded(double(round(x.at(row + i) * scale, half) * weight.at(i)), half));
  }
  return out;
}

// One operation. bias may be empty.
inline float64::Values layer_norm(const HostTensor& x, const HostTensor& weight,
                                  const HostTensor* bias, float eps) {
  const int64_t dim = weight.view().n_elements();
  float64::Values out;
  for (int64_t row = 0; row < x.view().n_elements(); row += dim) {
    float mean = 0, variance = 0;
    for (int64_t i = 0; i < dim; ++i) mean += x.at(row + i);
    mean /= float(dim);
    for (int64_t i = 0; i < dim; ++i)
      variance += (x.at(row + i) - mean) * (x.at(row + i) - mean) / float(dim);
    const float scale = 1 / std::sqrt(variance + eps);
    for (int64_t i = 0; i < dim; ++i) {
      const float y = (x.at(row + i) - mean) * scale * weight.at(i);
      out.push_back(rounded(double(y + (bias == nullptr ? 0 : bias->at(i))), weight.view().dtype));
    }
  }
  return out;
}

// One operation.
inline float64::Values softmax(const float64::Values& x, size_t n, DType half) {
  float64::Values out(x.size());
  for (size_t row = 0; row < x.size(); row += n) {
    const auto begin = x.begin() + int64_t(row);
    const auto max = float(*std::max_element(begin, begin + int64_t(n)));
    std::vector<float> p(n);
    float sum = 0;
    for (size_t i = 0; i < n; ++i) sum += p[i] = std::exp(float(x[row + i]) - max);
    for (size_t i = 0; i < n; ++i) out[row + i] = rounded(double(p[i] / sum), half);
  }
  return out;
}

// x [n_tokens, n_heads, head_dim] times cosines, plus its other half times sines: three operations.
inline float64::Values rope(const HostTensor& x, const HostTensor& cos_sin, int64_t n_heads,
                            int64_t head_dim, int64_t rotary_dim, int64_t pos, DType half) {
  float64::Values out = doubles(x);
  const int64_t n_pairs = rotary_dim / 2;
  for (int64_t row = 0; row < x.view().n_elements() / head_dim; ++row) {
    for (int64_t i = 0; i < n_pairs; ++i) {
      const int64_t at = row * head_dim + i, angle = (pos + row / n_heads) * n_pairs + i;
      const float c = cos_sin.at(2 * angle), s = cos_sin.at(2 * angle + 1);
      const float a = x.at(at), b = x.at(at + n_pairs);
      out[size_t(at)] = rounded(double(round(a * c, half) - round(b * s, half)), half);
      out[size_t(at + n_pairs)] = rounded(double(round(b * c, half) + round(a * s, half)), half);
    }
  }
  return out;
}

// One row: q over keys 0 ... last in F16. Scores, scaled scores, the steps of a soft cap and
// probabilities are rounded to F16, and the result to `half`.
inline float64::Values attention_row(const float64::Values& q, const float64::Values& k,
                                     const float64::Values& v, int64_t last, float scale,
                                     DType half, float softcap = 0) {
  const size_t n = size_t(last) + 1, head_dim = q.size();
  const auto f16_of = [](double x) { return round(float(x), DType::F16); };
  float64::Values p;
  for (size_t j = 0; j < n; ++j) {
    float score = 0;
    for (size_t i = 0; i < head_dim; ++i) score += float(q[i]) * f16_of(k[j * head_dim + i]);
    float scaled = round(round(score, DType::F16) * scale, DType::F16);
    if (softcap > 0) {
      const float bent = round(std::tanh(round(scaled / softcap, DType::F16)), DType::F16);
      scaled = round(softcap * bent, DType::F16);
    }
    p.push_back(double(scaled));
  }
  p = softmax(p, n, DType::F16);
  std::vector<float> sums(head_dim);
  for (size_t j = 0; j < n; ++j) {
    for (size_t i = 0; i < head_dim; ++i) sums[i] += float(p[j]) * f16_of(v[j * head_dim + i]);
  }
  float64::Values out;
  for (const float sum : sums) out.push_back(rounded(double(sum), half));
  return out;
}

}  // namespace plain
}  // namespace minfer::test
