#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/backend.h"

// The operations of kernels/backend.h in float64, plain and slow, which every backend is compared
// with. Tensors are row-major vectors of doubles.
namespace minfer::test::float64 {

using Values = std::vector<double>;

// [n_tokens, out] = x [n_tokens, in] times w [out, in] transposed
inline Values matmul(const Values& x, const Values& w, int64_t in_dim) {
  const int64_t n_tokens = int64_t(x.size()) / in_dim, out_dim = int64_t(w.size()) / in_dim;
  Values out(size_t(n_tokens * out_dim));
  for (int64_t t = 0; t < n_tokens; ++t) {
    for (int64_t o = 0; o < out_dim; ++o) {
      double sum = 0;
      for (int64_t k = 0; k < in_dim; ++k)
        sum += x[size_t(t * in_dim + k)] * w[size_t(o * in_dim + k)];
      out[size_t(t * out_dim + o)] = sum;
    }
  }
  return out;
}

inline Values rms_norm(const Values& x, const Values& weight, double eps) {
  const size_t dim = weight.size();
  Values out(x.size());
  for (size_t row = 0; row < x.size(); row += dim) {
    double sum_sq = 0;
    for (size_t i = 0; i < dim; ++i) sum_sq += x[row + i] * x[row + i];
    const double scale = 1 / std::sqrt(sum_sq / double(dim) + eps);
    for (size_t i = 0; i < dim; ++i) out[row + i] = x[row + i] * scale * weight[i];
  }
  return out;
}

inline Values layer_norm(const Values& x, const Values& weight, const Values& bias, double eps) {
  const size_t dim = weight.size();
  Values out(x.size());
  for (size_t row = 0; row < x.size(); row += dim) {
    double mean = 0, variance = 0;
    for (size_t i = 0; i < dim; ++i) mean += x[row + i] / double(dim);
    for (size_t i = 0; i < dim; ++i) variance += std::pow(x[row + i] - mean, 2) / double(dim);
    const double scale = 1 / std::sqrt(variance + eps);
    for (size_t i = 0; i < dim; ++i) {
      out[row + i] = (x[row + i] - mean) * scale * weight[i] + (bias.empty() ? 0 : bias[i]);
    }
  }
  return out;
}

inline double gelu(double x, GeluKind kind) {
  if (kind == GeluKind::Erf) return x / 2 * std::erfc(-x / std::sqrt(2.0));
  const double u = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
  return x / (1 + std::exp(-2 * u));  // x / 2 * (1 + tanh(u)) without cancellation
}

inline double silu(double x) { return x / (1 + std::exp(-x)); }

inline double activated(double x, Activation activation) {
  return activation == Activation::Silu ? silu(x) : gelu(x, gelu_kind(activation));
}

// Activation::ClampedSwiGlu of Backend::glu.
inline double clamped_swiglu(double gate, double up, const SwiGluClamp& c) {
  const double limit = double(c.limit), g = std::min(gate, limit);
  return (std::clamp(up, -limit, limit) + 1) * g / (1 + std::exp(-double(c.alpha) * g));
}

inline Values softmax(const Values& x, size_t n) {
  Values out(x.size());
  for (size_t row = 0; row < x.size(); row += n) {
    const double max = *std::max_element(x.begin() + int64_t(row), x.begin() + int64_t(row + n));
    double sum = 0;
    for (size_t i = 0; i < n; ++i) sum += out[row + i] = std::exp(x[row + i] - max);
    for (size_t i = 0; i < n; ++i) out[row + i] /= sum;
  }
  return out;
}

// x [n_tokens, n_heads, head_dim]; cos_sin [max_seq_len, rotary_dim / 2, 2]
inline Values rope(Values x, const Values& cos_sin, int64_t n_heads, int64_t head_dim,
                   int64_t rotary_dim, int64_t pos) {
  const int64_t half = rotary_dim / 2, n_rows = int64_t(x.size()) / head_dim;
  for (int64_t row = 0; row < n_rows; ++row) {
    double* const head = x.data() + row * head_dim;
    const double* const angle = cos_sin.data() + (pos + row / n_heads) * rotary_dim;
    for (int64_t i = 0; i < half; ++i) {
      const double c = angle[2 * i], s = angle[2 * i + 1], a = head[i], b = head[i + half];
      head[i] = a * c - b * s;
      head[i + half] = b * c + a * s;
    }
  }
  return x;
}

// c tanh(x / c); c = 0: x
inline double capped(double x, double c) { return c == 0 ? x : c * std::tanh(x / c); }

struct AttentionResult {
  Values out;         // [n_tokens, n_heads, head_dim]
  Values magnitudes;  // as out: sum of probability times |value|
  Values scores;      // [n_tokens, n_heads]: largest sum of |q_i k_i| times |scale|
  Values spreads;     // as scores: largest distance of a score from the maximum
};

// Causal attention of queries at pos + t over k, v [pos + n_tokens, n_kv_heads, head_dim], of which
// each sees the last `window`; 0: all. With a soft cap c, scores become c tanh(score / c). sinks
// [n_heads], or empty: one more score for each head, whose value is 0.
inline AttentionResult attention(const Values& q, const Values& k, const Values& v, int64_t n_heads,
                                 int64_t n_kv_heads, int64_t head_dim, int64_t pos, double scale,
                                 int64_t window = 0, double softcap = 0, const Values& sinks = {}) {
  const int64_t n_tokens = int64_t(q.size()) / (n_heads * head_dim);
  AttentionResult result;
  result.out.resize(q.size());
  result.magnitudes.resize(q.size());
  for (int64_t row = 0; row < n_tokens * n_heads; ++row) {
    const int64_t kv_len = pos + row / n_heads + 1;
    const int64_t kv_head = row % n_heads / (n_heads / n_kv_heads);
    const auto at = [&](int64_t j, int64_t i) {
      return size_t((j * n_kv_heads + kv_head) * head_dim + i);
    };
    const int64_t first = window == 0 ? 0 : std::max<int64_t>(0, kv_len - window);
    Values p(static_cast<size_t>(kv_len - first));
    double largest = 0;
    for (int64_t j = first; j < kv_len; ++j) {
      double sum_abs = 0;
      for (int64_t i = 0; i < head_dim; ++i) {
        const double product = q[size_t(row * head_dim + i)] * k[at(j, i)] * scale;
        p[size_t(j - first)] += product;
        sum_abs += std::abs(product);
      }
      largest = std::max(largest, sum_abs);
    }
    for (double& score : p) score = capped(score, softcap);
    if (!sinks.empty()) p.push_back(sinks[size_t(row % n_heads)]);
    const auto [low, high] = std::minmax_element(p.begin(), p.end());
    result.scores.push_back(largest);
    result.spreads.push_back(*high - *low);
    p = softmax(p, p.size());
    for (int64_t i = 0; i < head_dim; ++i) {
      double& out = result.out[size_t(row * head_dim + i)];
      double& magnitude = result.magnitudes[size_t(row * head_dim + i)];
      for (int64_t j = first; j < kv_len; ++j) {
        out += p[size_t(j - first)] * v[at(j, i)];
        magnitude += p[size_t(j - first)] * std::abs(v[at(j, i)]);
      }
    }
  }
  return result;
}

}  // namespace minfer::test::float64
