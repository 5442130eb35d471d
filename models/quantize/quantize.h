#pragma once

#include <string_view>

#include "kernels/base/quantized_matrix.h"
#include "models/quantize/gptq.h"

namespace minfer {

// Quantizes weights [out, in] of any type, with F16 scales; the format's group must divide in. The
// result of a row depends neither on other rows nor on n_threads. Throws Input, with the row and
// the column, for a weight that is not finite or not in the range of F16: the scales are F16, and
// other readers dequantize to it.
//   gptq  if given, GPTQ's error feedback chooses the codes and scales (gptq.h)
HostQuantizedMatrix quantize_matrix(const Tensor& weights, const QuantizeFormat& format,
                                    QuantizeMethod method, int n_threads,
                                    const GptqInputs* gptq = nullptr);

// How much a quantized matrix differs from its weights.
struct QuantizationError {
  double squared_error = 0, squared_weights = 0;  // sums
  double largest_error = 0;

  double relative_rms() const;  // sqrt(squared_error / squared_weights); 0 if all weights are 0
  void add(const QuantizationError& other);
  void add_weight(double weight, double restored);
};
QuantizationError quantization_error(const Tensor& weights, const QuantizedMatrix& quantized,
                                     int n_threads);

}  // namespace minfer
