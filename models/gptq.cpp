#include "models/gptq.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/base/math.h"
#include "models/parallel.h"

namespace minfer {
namespace {

constexpr double kDamping = 0.01;  // of the mean of the diagonal, as in the paper

// sum a[i] b[i], in eight sums that the compiler may put into vectors.
double dot(const double* a, const double* b, int64_t n) {
  constexpr int64_t kSums = 8;
  double sums[kSums] = {};
  int64_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (int64_t s = 0; s < kSums; ++s) sums[s] += a[i + s] * b[i + s];
  }
  for (; i < n; ++i) sums[0] += a[i] * b[i];
  return std::accumulate(std::begin(sums), std::end(sums), 0.0);
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

}  // namespace

InverseFactor make_inverse_factor(const Tensor& hessian, int n_threads) {
  const int64_t n = hessian.shape[0];
  const float* const h = hessian.as<const float>();
  InverseFactor factor;
  factor.order.resize(static_cast<size_t>(n));
  std::iota(factor.order.begin(), factor.order.end(), int64_t{0});
  std::stable_sort(factor.order.begin(), factor.order.end(),
                   [&](int64_t a, int64_t b) { return h[a * n + a] > h[b * n + b]; });
  double mean = 0;
  for (int64_t j = 0; j < n; ++j) mean += double{h[j * n + j]} / static_cast<double>(n);

  std::vector<double> a(static_cast<size_t>(n * n));
  for (int64_t i = 0; i < n; ++i) {
    const float* const from = h + factor.order[static_cast<size_t>(i)] * n;
    double* const to = a.data() + i * n;
    for (int64_t j = 0; j < n; ++j) to[j] = double{from[factor.order[static_cast<size_t>(j)]]};
    to[i] += to[i] == 0 ? 1 : kDamping * mean;
  }
  factorize(a, n, n_threads);
  factor.upper.resize(a.size(), 0.0f);
  parallel_for(n_threads, n, [&](int64_t i) {
    std::vector<double> scratch(static_cast<size_t>(n));
    invert_row(factor.upper.data() + i * n, a, n, i, scratch.data());
  });
  return factor;
}

void round_with_feedback(std::span<float> row, std::span<const GroupScale> scales,
                         const InverseFactor& factor) {
  const size_t n = row.size(), group = n / scales.size();
  MINFER_CHECK(factor.order.size() == n, "a row of ", n, ", a factor of ", factor.order.size());
  std::vector<float> left(n);  // in the factor's order
  for (size_t j = 0; j < n; ++j) left[j] = row[static_cast<size_t>(factor.order[j])];
  for (size_t j = 0; j < n; ++j) {
    const auto column = static_cast<size_t>(factor.order[j]);
    const GroupScale& scale = scales[column / group];
    const float* const u = factor.upper.data() + j * n;
    const float stored = scale.scale * float(int{level_of(left[j], scale)} - scale.zero);
    const float error = (left[j] - stored) / u[j];
    for (size_t k = j + 1; k < n; ++k) left[k] -= error * u[k];
    row[column] = stored;
  }
}

}  // namespace minfer
