#pragma once

#include <vector>

#include "kernels/base/half.h"
#include "kernels/comm/ring.h"
#include "tests/support/tensors.h"

namespace minfer::test {

// An element of the sum over the ranks' inputs, in the order in which a ring adds them and with
// each step rounded to T.
template <typename T>
float ring_sum(const std::vector<HostTensor>& inputs, int64_t row, int64_t column) {
  const int n_ranks = int(inputs.size());
  const int64_t n_columns = inputs[0].view().shape[1];
  int chunk = 0;
  while (chunk_begin(n_columns, n_ranks, chunk + 1) <= column) ++chunk;
  float sum = 0;
  for (int k = 0; k < n_ranks; ++k) {
    const float x = inputs[size_t((chunk + k) % n_ranks)].at(row * n_columns + column);
    sum = k == 0 ? x : to_f32(from_f32<T>(sum + x));
  }
  return sum;
}

}  // namespace minfer::test
