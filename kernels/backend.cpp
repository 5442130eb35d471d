#include "kernels/backend.h"

#include "kernels/decode_plan.h"

namespace minfer {

std::unique_ptr<DecodePlan> Backend::plan_decode(const DecodeModel&) { return nullptr; }

void Backend::gated_matmul(Tensor out, Tensor x, const Matrix& gate, Tensor gate_bias,
                           const Matrix& up, Tensor up_bias, Tensor other) {
  const Product products[] = {{other, gate}, {out, up}};
  matmuls(x, products);
  if (gate_bias) add_bias(other, other, gate_bias);
  if (up_bias) add_bias(out, out, up_bias);
  swiglu(out, other, out);
}

}  // namespace minfer
