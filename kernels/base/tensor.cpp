#include "kernels/base/tensor.h"

#include <ostream>

namespace minfer {

std::ostream& operator<<(std::ostream& out, const Shape& shape) {
  out << '[';
  for (int i = 0; i < shape.rank; ++i) out << (i == 0 ? "" : ", ") << shape[i];
  return out << ']';
}

int64_t bytes_of(DType dtype, const Shape& shape) {
  const int64_t n_elements = shape.n_elements();
  if (n_elements == 0) return 0;
  return checked_mul(n_elements / shape.last(), bytes_of(dtype, shape.last()));
}

}  // namespace minfer
