#pragma once

#include <string_view>

#include "kernels/base/quantized_matrix.h"
#include "models/quantize/gptq.h"

namespace minfer {

// weights [out, in] of any type, in_dim a multiple of the format's group: the matrix that stands
// for them, with F16 scales. Rows are independent of each other and of n_threads. Throws Input,
// naming row and column, for a weight that is not finite or that f16, the type of the scales and of
// what other readers make of the matrix, cannot hold.
//   gptq  with it codes and scales are chosen by GPTQ's error feedback (gptq.h)
HostQuantizedMatrix quantize_matrix(const Tensor& weights, const QuantizeFormat& format,
                                    QuantizeMethod method, int n_threads,
                                    const GptqInputs* gptq = nullptr);

// How far a matrix is from the weights it stands for.
struct QuantizationError {
  double squared_error = 0, squared_weights = 0;  // sums
  double largest_error = 0;

  double relative_rms() const;  // root of the quotient of the sums; 0 where all weights are 0
  void add(const QuantizationError& other);
  void add_weight(double weight, double restored);
};
QuantizationError quantization_error(const Tensor& weights, const QuantizedMatrix& quantized,
                                     int n_threads);

}  // namespace minfer
