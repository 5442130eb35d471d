#pragma once

#include <span>
#include <vector>

#include "kernels/base/tensor.h"
#include "models/quantize/group_search.h"

namespace minfer {

// GPTQ quantizes the columns of a matrix one after the other. The columns not yet quantized are
// changed to compensate for what each rounding does to the outputs w x, as far as the inputs x of a
// calibration text are correlated. Source: Frantar et al., "GPTQ", 2022.
//
// Two things go beyond the paper:
// - The scale of a group is chosen when the group's turn comes, for the weights as compensated by
//   then. A 4-bit scale is the one of least loss with compensation within the group, not the one of
//   least error of the weights (scale_of_least_loss).
// - The inputs x are those of a model whose earlier matrices are quantized, the target outputs y
//   are those of the original model: the weights are first moved to where the outputs w x are
//   nearest to y. Source of the idea: Li et al., "GPTAQ", 2025.

// What GPTQ needs to know of the inputs: a factor of the inverse of H = sum x x^T. Groups are
// sorted by decreasing mean of H[j][j], and columns within a group by decreasing H[j][j], so that
// the columns that matter most have the most later columns to compensate for them.
struct InverseFactor {
  std::vector<int64_t> order;  // column of the matrix at place j; group by group
  std::vector<float> upper;    // U [in, in] in that order, upper triangular: H^-1 = U^T U
};

// hessian  [in, in] f32, symmetric; its diagonal is taken as 1 for an input that is always zero
// group    columns that share a scale; divides in
// damping  this fraction of the mean of H's diagonal is added to the diagonal
// maths    f64, Cholesky
// Throws Numeric if the damped H is not positive definite.
InverseFactor make_inverse_factor(const Tensor& hessian, int64_t group, double damping,
                                  int n_threads);

// The statistics by which rows are quantized. These are views of memory that a calibration owns.
struct GptqInputs {
  const InverseFactor* feedback = nullptr;
  const InverseFactor* correction = nullptr;  // damped more, because a drift is easily overfitted
  Tensor drift;  // [rows, in] f32: sum (y - w x) x^T with target outputs y; or null
};
constexpr double kFeedbackDamping = 0.01, kCorrectionDamping = 0.1;

// rows += drift H^-1, which minimizes sum |y - w x|^2; rows and drift are [n, in].
void follow_drift(std::span<float> rows, std::span<const float> drift, const InverseFactor& factor);

// Replaces the weights of rows [n, in] by their quantized values, scale * (code - zero), and writes
// the scales and zeros, [n, in / group]. Rows are independent of each other.
void quantize_with_feedback(std::span<float> rows, std::span<GroupScale> scales,
                            const InverseFactor& factor, const QuantizeFormat& format,
                            QuantizeMethod method);

}  // namespace minfer
