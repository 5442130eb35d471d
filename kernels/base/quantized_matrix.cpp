#include "kernels/base/quantized_matrix.h"

#include <algorithm>
#include <vector>

#include "kernels/base/math.h"
#include "kernels/base/parallel.h"

namespace minfer {
namespace {

constexpr int64_t kPieceElements = 1 << 18;  // of a thread: a fraction of a millisecond

// codes [n], one a byte, as U4 or U8.
void store_codes(uint8_t* out, const uint8_t* codes, int64_t n, DType dtype) {
  if (dtype == DType::U8) {
    std::copy(codes, codes + n, out);
    return;
  }
  for (int64_t i = 0; i < n; i += 2) out[i / 2] = uint8_t(codes[i] | codes[i + 1] << 4);
}

}  // namespace

void HostQuantizedMatrix::reset(DType code_type, DType scale_type, int64_t out_dim, int64_t in_dim,
                                int64_t group_dim, bool asymmetric) {
  MINFER_CHECK((code_type == DType::U4 || code_type == DType::U8) &&
                   (scale_type == DType::F16 || scale_type == DType::F32) && group_dim > 0 &&
                   in_dim % group_dim == 0,
               "a quantized matrix of ", code_type, " and ", scale_type, ", ", in_dim,
               " columns in groups of ", group_dim);
  group = group_dim;
  table = CodeTable::None;
  codes.reset(code_type, {out_dim, in_dim});
  scales.reset(scale_type, {out_dim, in_dim / group});
  if (asymmetric) {
    mins.reset(DType::F32, {out_dim, in_dim / group});
  } else {
    mins = {};
  }
}

HostQuantizedMatrix make_quantized_matrix(DType codes, DType scales, int64_t out_dim,
                                          int64_t in_dim, int64_t group, bool asymmetric) {
  HostQuantizedMatrix w;
  w.reset(codes, scales, out_dim, in_dim, group, asymmetric);
  return w;
}

HostQuantizedMatrix to_quantized_matrix(const Tensor& host, int n_threads) {
  const GroupFormat stored = group_format(host.dtype), format = widened(stored);
  const int64_t out_dim = host.shape[0], in_dim = host.shape[1];
  HostQuantizedMatrix w =
      make_quantized_matrix(format.bits == 4 ? DType::U4 : DType::U8, format.scales, out_dim,
                            in_dim, format.group, format.has_mins);
  // A code without a min or a table is a distance from the zero code.
  const bool keeps_codes = format.has_mins || format.table != CodeTable::None;
  const int shift = keeps_codes ? 0 : (1 << (format.bits - 1)) - (1 << (stored.bits - 1));
  w.table = format.table;
  const int64_t n_groups = in_dim / format.group;
  const auto convert = [&](int64_t begin, int64_t end) {
    std::vector<uint8_t> codes(static_cast<size_t>(in_dim));
    std::vector<float> scales(static_cast<size_t>(n_groups)), mins(scales);
    for (int64_t row = begin; row < end; ++row) {
      unpack_groups(codes.data(), scales.data(), mins.data(), host.rows(row, 1).data, host.dtype,
                    in_dim);
      for (uint8_t& code : codes) code = uint8_t(code + shift);
      store_codes(static_cast<uint8_t*>(w.codes.view().rows(row, 1).data), codes.data(), in_dim,
                  w.codes.view().dtype);
      visit_float(format.scales, [&]<typename T>() {
        T* const to = w.scales.as<T>() + row * n_groups;
        for (int64_t g = 0; g < n_groups; ++g) to[g] = from_f32<T>(scales[static_cast<size_t>(g)]);
      });
      if (format.has_mins) {
        std::copy(mins.begin(), mins.end(), w.mins.as<float>() + row * n_groups);
      }
    }
  };
  const int64_t rows_of_piece = std::max<int64_t>(1, kPieceElements / in_dim);
  parallel_for(n_threads, ceil_div(out_dim, rows_of_piece), [&](int64_t piece) {
    convert(piece * rows_of_piece, std::min(out_dim, (piece + 1) * rows_of_piece));
  });
  return w;
}

void dequantize_row(float* out, const QuantizedMatrix& w, int64_t row) {
  const auto* codes = static_cast<const uint8_t*>(w.codes.rows(row, 1).data);
  const CodeValue value{w.bits(), w.asymmetric(), w.table};
  visit_float(w.scales.dtype, [&]<typename T>() {
    const T* const scales = w.scales.as<const T>() + row * w.n_groups();
    const float* const mins =
        w.asymmetric() ? w.mins.as<const float>() + row * w.n_groups() : nullptr;
    const bool is_bytes = w.bits() == 8;
    for (int64_t g = 0; g < w.n_groups(); ++g) {
      const float scale = to_f32(scales[g]);
      for (int64_t i = g * w.group; i < (g + 1) * w.group; ++i) {
        const int code = is_bytes ? codes[i] : (codes[i >> 1] >> (i & 1) * 4) & 15;
        const float x = float(value(code)) * scale;
        out[i] = mins == nullptr ? x : x + mins[g];
      }
    }
  });
}

}  // namespace minfer
