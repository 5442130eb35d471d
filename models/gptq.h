#pragma once

#include <span>
#include <vector>

#include "kernels/base/tensor.h"
#include "models/group_search.h"

namespace minfer {

// GPTQ: the columns of a matrix are quantized one after the other, and what the rounding of one
// does to the outputs w x is made up for by the columns that are still to come, as far as the
// inputs x of a calibration text go together. Source: Frantar et al., "GPTQ", 2022.

// What it has to know of the inputs: a factor of the inverse of H = sum x x^T, columns by falling
// H[j][j], so that those that matter most find the most columns to make up for them.
struct InverseFactor {
  std::vector<int64_t> order;  // column of the matrix at place j
  std::vector<float> upper;    // U [in, in] in that order, upper triangular: H^-1 = U^T U
};

// hessian  [in, in] f32, symmetric; a column that is always zero is taken as independent
// maths    f64, Cholesky, with 1 % of the mean of H's diagonal added to it
// Throws Numeric where that is not positive definite.
InverseFactor make_inverse_factor(const Tensor& hessian, int n_threads);

// Replaces the weights of one row by what they are stored as, scale * (level - zero), each group by
// its scale.
void round_with_feedback(std::span<float> row, std::span<const GroupScale> scales,
                         const InverseFactor& factor);

}  // namespace minfer
