#include "models/quantize/quantize.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/base/parallel.h"
#include "kernels/base/quant_codec.h"

namespace minfer {
namespace {

constexpr float kLargestF16 = 65504;
constexpr int64_t kPieceWeights = 1 << 18;  // of whole rows: what a thread takes at a time

// f(first row, number of rows) over all rows, in pieces.
template <typename F>
void for_row_pieces(const Tensor& weights, int n_threads, F&& f) {
  const int64_t n_rows = weights.shape[0];
  const int64_t piece_rows = std::max<int64_t>(1, kPieceWeights / weights.shape[1]);
  parallel_for(n_threads, ceil_div(n_rows, piece_rows), [&](int64_t piece) {
    const int64_t begin = piece * piece_rows;
    f(begin, std::min(piece_rows, n_rows - begin));
  });
}

// Rows [begin, begin + n_rows) as f32.
std::vector<float> rows_as_f32(const Tensor& weights, int64_t begin, int64_t n_rows) {
  const int64_t in_dim = weights.shape[1];
  std::vector<float> values(static_cast<size_t>(n_rows * in_dim));
  for (int64_t row = 0; row < n_rows; ++row) {
    dequantize_row(values.data() + row * in_dim, weights.rows(begin + row, 1).data, weights.dtype,
                   in_dim);
  }
  return values;
}

void require_in_range(const std::vector<float>& values, int64_t first_row, int64_t in_dim) {
  const auto bad = std::ranges::find_if_not(
      values, [](float w) { return std::abs(w) <= kLargestF16; });  // NaN fails it too
  if (bad == values.end()) return;
  const int64_t i = bad - values.begin();
  throw Error(ErrorKind::Input,
              cat("row ", first_row + i / in_dim, ", column ", i % in_dim, ": ", *bad,
                  " cannot be quantized with f16 scales, at most ", kLargestF16, " can"));
}

void store_codes(const Tensor& codes, int64_t first_row, const std::vector<float>& values,
                 const std::vector<GroupScale>& scales, int64_t group) {
  auto* out = static_cast<uint8_t*>(codes.data) + bytes_of(codes.dtype, first_row * codes.shape[1]);
  const bool nibbles = codes.dtype == DType::U4;
  for (size_t g = 0; g < scales.size(); ++g) {
    const float* w = values.data() + static_cast<int64_t>(g) * group;
    if (nibbles) {
      for (int64_t i = 0; i < group; i += 2) {
        *out++ = uint8_t(code_of(w[i], scales[g]) | code_of(w[i + 1], scales[g]) << 4);
      }
    } else {
      for (int64_t i = 0; i < group; ++i) *out++ = code_of(w[i], scales[g]);
    }
  }
}

}  // namespace

HostQuantizedMatrix quantize_matrix(const Tensor& weights, const QuantizeFormat& format,
                                    QuantizeMethod method, int n_threads, const GptqInputs* gptq) {
  const int64_t in_dim = weights.shape[1], group = format.group == 0 ? in_dim : format.group;
  MINFER_CHECK(in_dim % group == 0 && (format.bits == 8 || (format.bits == 4 && group % 2 == 0)) &&
                   !(format.asymmetric && format.bits == 8),
               "no format for ", in_dim, " columns in groups of ", group);
  HostQuantizedMatrix out =
      make_quantized_matrix(format.bits == 4 ? DType::U4 : DType::U8, DType::F16, weights.shape[0],
                            in_dim, group, format.asymmetric);
  for_row_pieces(weights, n_threads, [&](int64_t begin, int64_t n_rows) {
    std::vector<float> values = rows_as_f32(weights, begin, n_rows);
    require_in_range(values, begin, in_dim);
    const int64_t first_group = begin * (in_dim / group);
    std::vector<GroupScale> scales(values.size() / static_cast<size_t>(group));
    if (gptq == nullptr) {
      choose_scales(scales.data(), values.data(), std::ssize(scales), group, group, format, method);
    } else {
      if (gptq->drift) {
        const float* const drift = gptq->drift.as<const float>() + begin * in_dim;
        follow_drift(values, {drift, values.size()}, *gptq->correction);
        require_in_range(values, begin, in_dim);
      }
      quantize_with_feedback(values, scales, *gptq->feedback, format, method);
    }
    for (size_t g = 0; g < scales.size(); ++g) {
      const auto i = first_group + static_cast<int64_t>(g);
      out.scales.as<f16>()[i] = to_f16(scales[g].scale);
      if (format.asymmetric) out.mins.as<float>()[i] = -scales[g].scale * float(scales[g].zero);
    }
    store_codes(out.codes, begin, values, scales, group);
  });
  return out;
}

double QuantizationError::relative_rms() const {
  return squared_weights == 0 ? 0 : std::sqrt(squared_error / squared_weights);
}

void QuantizationError::add(const QuantizationError& other) {
  squared_error += other.squared_error;
  squared_weights += other.squared_weights;
  largest_error = std::max(largest_error, other.largest_error);
}

void QuantizationError::add_weight(double weight, double restored) {
  const double difference = weight - restored;
  squared_error += difference * difference;
  squared_weights += weight * weight;
  largest_error = std::max(largest_error, std::abs(difference));
}

QuantizationError quantization_error(const Tensor& weights, const QuantizedMatrix& quantized,
                                     int n_threads) {
  const int64_t in_dim = weights.shape[1];
  std::vector<QuantizationError> of_row(static_cast<size_t>(weights.shape[0]));
  for_row_pieces(weights, n_threads, [&](int64_t begin, int64_t n_rows) {
    const std::vector<float> values = rows_as_f32(weights, begin, n_rows);
    std::vector<float> restored(static_cast<size_t>(in_dim));
    for (int64_t row = 0; row < n_rows; ++row) {
      dequantize_row(restored.data(), quantized, begin + row);
      const float* w = values.data() + row * in_dim;
      QuantizationError& error = of_row[static_cast<size_t>(begin + row)];
      for (size_t i = 0; i < restored.size(); ++i) {
        error.add_weight(double{w[i]}, double{restored[i]});
      }
    }
  });
  QuantizationError total;
  for (const QuantizationError& error : of_row) total.add(error);
  return total;
}

}  // namespace minfer
