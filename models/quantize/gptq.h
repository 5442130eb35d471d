#pragma once

#include <span>
#include <vector>

#include "kernels/base/tensor.h"
#include "models/quantize/group_search.h"

namespace minfer {

// GPTQ: the columns of a matrix are quantized one after the other, and what the rounding of one
// does to the outputs w x is made up for by the columns that are still to come, as far as the
// inputs x of a calibration text go together. Source: Frantar et al., "GPTQ", 2022.
//
// Two things go beyond the paper:
// - The scale of a group is chosen when its turn comes, for the weights as they are by then, and by
//   the loss that is left with the feedback within the group, not by the error of the weights.
// - The inputs x are those of a model whose earlier matrices are quantized, the outputs to come
//   near to are those of the model as it was: the weights are first moved to where the outputs are
//   nearest to those. Source of the idea: Li et al., "GPTAQ", 2025.

// What it has to know of the inputs: a factor of the inverse of H = sum x x^T. Groups come by the
// falling mean of their H[j][j], columns within them by falling H[j][j], so that those that matter
// most find the most columns to make up for them.
struct InverseFactor {
  std::vector<int64_t> order;  // column of the matrix at place j; group by group
  std::vector<float> upper;    // U [in, in] in that order, upper triangular: H^-1 = U^T U
};

// hessian  [in, in] f32, symmetric; a column that is always zero is taken as independent
// group    columns that share a scale; divides in
// damping  this part of the mean of H's diagonal is added to it
// maths    f64, Cholesky
// Throws Numeric where that is not positive definite.
InverseFactor make_inverse_factor(const Tensor& hessian, int64_t group, double damping,
                                  int n_threads);

// What rows are quantized by; views of what a calibration keeps.
struct GptqInputs {
  const InverseFactor* feedback = nullptr;
  const InverseFactor* correction = nullptr;  // more damped: a drift is easily fitted too closely
  Tensor drift;  // [rows, in] f32: sum (y - w x) x^T, y being the outputs to come near to; or null
};
constexpr double kFeedbackDamping = 0.01, kCorrectionDamping = 0.1;

// rows += drift H^-1, which makes sum |y - w x|^2 least; both [n, in].
void follow_drift(std::span<float> rows, std::span<const float> drift, const InverseFactor& factor);

// Replaces the weights of rows [n, in] by what they are stored as, scale * (code - zero), and says
// by which scales, [n, in / group]. Rows are independent of each other.
void quantize_with_feedback(std::span<float> rows, std::span<GroupScale> scales,
                            const InverseFactor& factor, const QuantizeFormat& format,
                            QuantizeMethod method);

}  // namespace minfer
