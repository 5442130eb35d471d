#include "models/quantize/gptq.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "kernels/base/math.h"
#include "kernels/base/parallel.h"
#include "models/quantize/feedback_scale.h"

namespace minfer {
namespace {

// sum a[i] b[i], in eight sums that the compiler may put into vectors.
template <typename T>
T dot(const T* a, const T* b, int64_t n) {
  constexpr int64_t kSums = 8;
  T sums[kSums] = {};
  int64_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (int64_t s = 0; s < kSums; ++s) sums[s] += a[i + s] * b[i + s];
  }
  for (; i < n; ++i) sums[0] += a[i] * b[i];
  return std::accumulate(std::begin(sums), std::end(sums), T{0});
}

// In place: symmetric positive definite a [n, n] to the upper triangular v with a = v v^T, from the
// last column to the first.
void factorize(std::vector<double>& a, int64_t n, int n_threads) {
  const auto row = [&](int64_t i) { return a.data() + i * n; };
  for (int64_t j = n - 1; j >= 0; --j) {
    const int64_t behind = n - 1 - j;
    double* const pivot_row = row(j);
    const double square = pivot_row[j] - dot(pivot_row + j + 1, pivot_row + j + 1, behind);
    MINFER_REQUIRE(Numeric, square > 0 && std::isfinite(square),
                   "the inputs of a calibration text give a matrix that is not positive definite");
    const double pivot = pivot_row[j] = std::sqrt(square);
    constexpr int64_t kRows = 64;
    const auto rows = [&](int64_t piece) {
      for (int64_t i = piece * kRows; i < std::min(j, (piece + 1) * kRows); ++i) {
        row(i)[j] = (row(i)[j] - dot(row(i) + j + 1, pivot_row + j + 1, behind)) / pivot;
      }
    };
    const bool worth_threads = j * behind > (int64_t{1} << 20);
    parallel_for(worth_threads ? n_threads : 1, ceil_div(j, kRows), rows);
  }
}

// Row i of v^-1, from column i on; scratch [n].
void invert_row(float* out, const std::vector<double>& v, int64_t n, int64_t i, double* scratch) {
  std::fill(scratch, scratch + n, 0.0);
  scratch[i] = 1;
  for (int64_t k = i; k < n; ++k) {
    const double* const v_row = v.data() + k * n;
    const double x = scratch[k] / v_row[k];
    out[k] = static_cast<float>(x);
    for (int64_t j = k + 1; j < n; ++j) scratch[j] -= x * v_row[j];
  }
}

// Columns as InverseFactor has them.
std::vector<int64_t> feedback_order(const std::vector<double>& diagonal, int64_t group) {
  std::vector<double> of_group(diagonal.size());  // of each column: the sum of its group
  for (size_t j = 0; j < diagonal.size(); ++j) {
    const size_t first = j - j % static_cast<size_t>(group);
    of_group[j] = std::accumulate(&diagonal[first], &diagonal[first] + group, 0.0);
  }
  std::vector<int64_t> order(diagonal.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  const auto rank = [&](int64_t column) {
    const auto j = static_cast<size_t>(column);
    return std::tuple(-of_group[j], column / group, -diagonal[j]);
  };
  std::ranges::stable_sort(order, {}, rank);
  return order;
}

// out[i] -= factor * a[i]
void subtract(float* out, float factor, const float* a, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] -= factor * a[i];
}

// Rows [n, in] with their columns in the factor's order.
std::vector<float> in_order(std::span<const float> rows, const InverseFactor& factor) {
  std::vector<float> to(rows.size());
  for (size_t i = 0; i < to.size(); ++i) {
    const size_t place = i % factor.order.size();
    to[i] = rows[i - place + static_cast<size_t>(factor.order[place])];
  }
  return to;
}

}  // namespace

InverseFactor make_inverse_factor(const Tensor& hessian, int64_t group, double damping,
                                  int n_threads) {
  const int64_t n = hessian.shape[0];
  MINFER_CHECK(n % group == 0, n, " columns in groups of ", group);
  const float* const h = hessian.as<const float>();
  std::vector<double> diagonal(static_cast<size_t>(n));
  for (int64_t j = 0; j < n; ++j) diagonal[static_cast<size_t>(j)] = double{h[j * n + j]};
  const double mean =
      std::accumulate(diagonal.begin(), diagonal.end(), 0.0) / static_cast<double>(n);
  InverseFactor factor;
  factor.order = feedback_order(diagonal, group);

  std::vector<double> a(static_cast<size_t>(n * n));
  for (int64_t i = 0; i < n; ++i) {
    const float* const from = h + factor.order[static_cast<size_t>(i)] * n;
    double* const to = a.data() + i * n;
    for (int64_t j = 0; j < n; ++j) to[j] = double{from[factor.order[static_cast<size_t>(j)]]};
    to[i] += to[i] == 0 ? 1 : damping * mean;
  }
  factorize(a, n, n_threads);
  factor.upper.resize(a.size(), 0.0f);
  parallel_for(n_threads, n, [&](int64_t i) {
    std::vector<double> scratch(static_cast<size_t>(n));
    invert_row(factor.upper.data() + i * n, a, n, i, scratch.data());
  });
  return factor;
}

void follow_drift(std::span<float> rows, std::span<const float> drift,
                  const InverseFactor& factor) {
  const int64_t n = std::ssize(factor.order), n_rows = std::ssize(rows) / n;
  const std::vector<float> ordered = in_order(drift, factor);
  std::vector<float> shift(rows.size(), 0.0f);  // drift U^T U
  // Row by row of U for all rows of weights, because U may be larger than the caches.
  for (int64_t j = 0; j < n; ++j) {
    const float* const u = factor.upper.data() + j * n + j;
    for (int64_t r = 0; r < n_rows; ++r) {
      const int64_t at = r * n + j;
      subtract(shift.data() + at, -dot(u, ordered.data() + at, n - j), u, n - j);
    }
  }
  for (size_t i = 0; i < shift.size(); ++i) {
    const size_t place = i % factor.order.size();
    rows[i - place + static_cast<size_t>(factor.order[place])] += shift[i];
  }
}

void quantize_with_feedback(std::span<float> rows, std::span<GroupScale> scales,
                            const InverseFactor& factor, const QuantizeFormat& format,
                            QuantizeMethod method) {
  const int64_t n = std::ssize(factor.order), n_rows = std::ssize(rows) / n;
  const int64_t group = format.group == 0 ? n : format.group, n_groups = n / group;
  std::vector<float> left = in_order(rows, factor);
  const bool either_sign = format.bits == 4 && !format.asymmetric;
  std::vector<GroupScale> least_error(static_cast<size_t>(n_rows));
  std::vector<float> errors(static_cast<size_t>(n_rows * group));
  for (int64_t begin = 0; begin < n; begin += group) {
    const int64_t end = begin + group, group_index = factor.order[size_t(begin)] / group;
    const auto u = [&](int64_t j) { return factor.upper.data() + j * n; };
    choose_scales(least_error.data(), left.data() + begin, n_rows, group, n, format, method);
    for (int64_t r = 0; r < n_rows; ++r) {
      float* const w = left.data() + r * n;
      GroupScale scale = least_error[size_t(r)];
      if (format.bits == 4) {
        scale = scale_of_least_loss({w + begin, group, u(begin) + begin, n}, scale, either_sign);
      }
      scales[size_t(r * n_groups + group_index)] = scale;
      for (int64_t j = begin; j < end; ++j) {
        const float stored = scale.scale * float(int{code_of(w[j], scale)} - scale.zero);
        const float error = (w[j] - stored) / u(j)[j];
        subtract(w + j + 1, error, u(j) + j + 1, end - j - 1);
        errors[size_t(r * group + j - begin)] = error;
        rows[size_t(r * n + factor.order[size_t(j)])] = stored;
      }
    }
    // As above: row by row of U.
    for (int64_t j = begin; j < end; ++j) {
      for (int64_t r = 0; r < n_rows; ++r) {
        subtract(left.data() + r * n + end, errors[size_t(r * group + j - begin)], u(j) + end,
                 n - end);
      }
    }
  }
}

}  // namespace minfer
