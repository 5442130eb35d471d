#include "kernels/cpu/pack_codes.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/quant_codec.h"

namespace minfer::cpu {
namespace {

int64_t step_columns(int64_t in_dim, int64_t group) {
  return group == in_dim || group % kBrick == 0 ? kBrick : kBrick / 2;
}

bool fits_f16(const Tensor& values) {
  if (!values || values.dtype == DType::F16) return true;
  const float* const x = values.as<const float>();
  return std::all_of(x, x + values.n_elements(),
                     [](float value) { return to_f32(to_f16(value)) == value; });
}

void copy_as_f32(std::vector<float>& to, const Tensor& row) {
  visit_float(row.dtype, [&]<typename T>() {
    const T* const from = row.as<const T>();
    for (size_t i = 0; i < to.size(); ++i) to[i] = to_f32(from[i]);
  });
}

// Unpacks n 4-bit codes to one code per byte. The low nibble of a byte holds the even code.
void unpack_nibbles(uint8_t* to, const uint8_t* from, int64_t n) {
  for (int64_t i = 0; i < n / 2; ++i) {
    to[2 * i] = from[i] & 15;
    to[2 * i + 1] = from[i] >> 4;
  }
}

uint32_t four_bytes(const uint8_t* bytes) {
  uint32_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

// Packs one row's codes [padded_cols(in_dim)], one per byte, into its lane of a panel: one 32-bit
// word in every kPanel words.
template <int kBits>
void pack_lane(uint32_t* words, const uint8_t* codes, int64_t in_dim) {
  constexpr int64_t kColumns = 32 / kBits;
  const uint8_t* const end = codes + padded_cols(in_dim);
  for (; codes < end; codes += kColumns, words += kPanel) {
    // code_shift() gives the position of each code in the word.
    *words = kBits == 8 ? four_bytes(codes) : four_bytes(codes) | four_bytes(codes + 4) << 4;
  }
}

void pack_scales(const DeviceTensor& to, const std::vector<float>& scales, int64_t row) {
  const auto n_groups = int64_t(scales.size());
  visit_float(to.view().dtype, [&]<typename T>() {
    T* const panel = to.view().as<T>() + row / kPanel * n_groups * kPanel + row % kPanel;
    for (int64_t g = 0; g < n_groups; ++g) panel[g * kPanel] = from_f32<T>(scales[size_t(g)]);
  });
}

void clear_panel(const DeviceTensor& tensor, int64_t panel) {
  const Tensor rows = tensor.view().rows(panel, 1);
  std::fill_n(static_cast<char*>(rows.data), rows.n_bytes(), char{0});
}

}  // namespace

CodeRows code_rows(const QuantizedMatrix& host) {
  return {.out_dim = host.out_dim(),
          .in_dim = host.in_dim(),
          .group = host.group,
          .bits = host.bits(),
          .with_mins = host.asymmetric(),
          .half_scales = fits_f16(host.scales) && fits_f16(host.mins),
          .table = host.table,
          .read = [host](CodeRow& to, int64_t row) {
            const auto* bytes = static_cast<const uint8_t*>(host.codes.rows(row, 1).data);
            if (host.bits() == 8) {
              std::copy_n(bytes, host.in_dim(), to.codes.data());
            } else {
              unpack_nibbles(to.codes.data(), bytes, host.in_dim());
            }
            copy_as_f32(to.scales, host.scales.rows(row, 1));
            if (host.asymmetric()) copy_as_f32(to.mins, host.mins.rows(row, 1));
          }};
}

CodeRows code_rows(const Tensor& host) {
  const GroupFormat format = group_format(host.dtype);
  return {.out_dim = host.shape[0],
          .in_dim = host.shape[1],
          .group = format.group,
          .bits = format.bits,
          .with_mins = format.has_mins,
          .half_scales = format.scales == DType::F16,
          .table = format.table,
          .read = [host](CodeRow& to, int64_t row) {
            unpack_groups(to.codes.data(), to.scales.data(), to.mins.data(), host.rows(row, 1).data,
                          host.dtype, host.shape[1]);
          }};
}

Matrix allocate_codes(const CodeRows& rows, Backend& backend) {
  const int64_t panels = n_panels(rows.out_dim);
  const Shape groups{panels, rows.in_dim / rows.group, kPanel};
  const DType scale_type = rows.half_scales ? DType::F16 : DType::F32;
  Matrix matrix;
  matrix.out_dim = rows.out_dim;
  matrix.in_dim = rows.in_dim;
  matrix.group = rows.group;
  matrix.dtype = rows.bits == 4 ? DType::U4 : DType::U8;
  matrix.table = rows.table;
  matrix.storage =
      backend.allocate(DType::U8, {panels, packed_panel_bytes(rows.in_dim, rows.bits)});
  matrix.scales = backend.allocate(scale_type, groups);
  matrix.n_bytes = matrix.storage.view().n_bytes() + matrix.scales.view().n_bytes();
  if (rows.with_mins) {
    matrix.mins = backend.allocate(scale_type, groups);
    matrix.n_bytes += matrix.mins.view().n_bytes();
  }
  return matrix;
}

void pack_code_panel(const Matrix& to, const CodeRows& rows, int64_t panel) {
  const auto n_groups = size_t(rows.in_dim / rows.group);
  CodeRow row{.codes = std::vector<uint8_t>(size_t(padded_cols(rows.in_dim))),
              .scales = std::vector<float>(n_groups),
              .mins = std::vector<float>(rows.with_mins ? n_groups : 0)};
  const int64_t begin = panel * kPanel, n_rows = std::min(kPanel, rows.out_dim - begin);
  if (n_rows < kPanel) {
    clear_panel(to.storage, panel);
    clear_panel(to.scales, panel);
    if (to.mins) clear_panel(to.mins, panel);
  }
  auto* const words = static_cast<uint32_t*>(to.storage.view().rows(panel, 1).data);
  for (int64_t lane = 0; lane < n_rows; ++lane) {
    rows.read(row, begin + lane);
    if (rows.bits == 4) {
      pack_lane<4>(words + lane, row.codes.data(), rows.in_dim);
    } else {
      pack_lane<8>(words + lane, row.codes.data(), rows.in_dim);
    }
    pack_scales(to.scales, row.scales, begin + lane);
    if (to.mins) pack_scales(to.mins, row.mins, begin + lane);
  }
}

PackedCodes packed_codes(const Matrix& matrix) {
  const int64_t step = step_columns(matrix.in_dim, matrix.group);
  const bool has_table = matrix.table != CodeTable::None;
  return {.codes = matrix.storage.view().as<const uint8_t>(),
          .table = has_table ? entries_of(matrix.table).data() : nullptr,
          .scales = matrix.scales.view().data,
          .mins = matrix.mins.view().data,
          .half_scales = matrix.scales.view().dtype == DType::F16,
          .bits = matrix.dtype == DType::U4 ? 4 : 8,
          .n_groups = matrix.in_dim / matrix.group,
          .step = step,
          .steps_per_group = ceil_div(matrix.group, step),
          .n_steps = ceil_div(matrix.in_dim, step)};
}

void unpack_code_row(float* out, const Matrix& matrix, int64_t row) {
  const PackedCodes w = packed_codes(matrix);
  const CodeValue value{w.bits, w.mins != nullptr, matrix.table};
  const int64_t panel = row / kPanel, lane = row % kPanel;
  const uint8_t* const codes =
      w.codes + panel * packed_panel_bytes(matrix.in_dim, w.bits) + lane * 4;
  const int64_t columns = 32 / w.bits, first = panel * w.n_groups * kPanel + lane;
  visit_float(matrix.scales.view().dtype, [&]<typename T>() {
    const auto* const scales = static_cast<const T*>(w.scales);
    const auto* const mins = static_cast<const T*>(w.mins);
    for (int64_t i = 0; i < matrix.in_dim; ++i) {
      const int shift = code_shift(w.bits, int(i % columns));
      const uint8_t byte = codes[i / columns * 4 * kPanel + shift / 8];
      const int code = (byte >> shift % 8) & ((1 << w.bits) - 1);
      const int64_t group = first + i / matrix.group * kPanel;
      const float x = float(value(code)) * to_f32(scales[group]);
      out[i] = mins == nullptr ? x : x + to_f32(mins[group]);
    }
  });
}

}  // namespace minfer::cpu
