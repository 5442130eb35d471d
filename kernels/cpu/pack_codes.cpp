#include "kernels/cpu/pack_codes.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/quant_codec.h"

namespace minfer::cpu {
namespace {

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

// Packs bits [shift, shift + kBits) of the codes of a brick as one of its planes.
template <int kBits>
uint32_t* pack_plane(uint32_t* words, const uint8_t* codes, int shift) {
  constexpr uint32_t kMask = ((1u << kBits) - 1) * 0x01010101u;
  for (int word = 0; word < kBits; ++word, words += kPanel) {
    *words = 0;
    for (int field = 0; field < 8 / kBits; ++field, codes += 4) {
      *words |= (four_bytes(codes) >> shift & kMask) << (kBits * field);
    }
  }
  return words;
}

// Packs one row's codes [padded_cols(in_dim)], one per byte, into its lane of a panel: one 32-bit
// word in every kPanel words.
template <int kBits>
void pack_lane(uint32_t* words, const uint8_t* codes, int64_t in_dim) {
  const uint8_t* const end = codes + padded_cols(in_dim);
  for (; codes < end; codes += kBrick) {
    words = pack_plane<low_bits(kBits)>(words, codes, 0);
    if constexpr (high_bits(kBits) > 0) {
      words = pack_plane<high_bits(kBits)>(words, codes, low_bits(kBits));
    }
  }
}

void pack_lane(int bits, uint32_t* words, const uint8_t* codes, int64_t in_dim) {
  switch (bits) {
    case 2:
      return pack_lane<2>(words, codes, in_dim);
    case 3:
      return pack_lane<3>(words, codes, in_dim);
    case 4:
      return pack_lane<4>(words, codes, in_dim);
    case 5:
      return pack_lane<5>(words, codes, in_dim);
    case 6:
      return pack_lane<6>(words, codes, in_dim);
    case 8:
      return pack_lane<8>(words, codes, in_dim);
  }
  throw Error(ErrorKind::Internal, cat("codes of ", bits, " bits"));
}

void pack_scales(const DeviceTensor& to, const std::vector<float>& scales, int64_t row) {
  const auto n_groups = int64_t(scales.size());
  visit_float(to.view().dtype, [&]<typename T>() {
    T* const panel = to.view().as<T>() + row / kPanel * n_groups * kPanel + row % kPanel;
    for (int64_t g = 0; g < n_groups; ++g) panel[g * kPanel] = from_f32<T>(scales[size_t(g)]);
  });
}

// The scales and mins of a row of a panel as products.
void pack_products(const Matrix& to, const std::vector<BlockScales>& blocks, int64_t row) {
  const PackedCodes w = packed_codes(to);
  const int64_t n_groups = kFactorColumns / w.step, n_blocks = int64_t(blocks.size());
  uint8_t* at = to.scales.view().as<uint8_t>() + row / kPanel * n_blocks * w.product_bytes();
  for (const BlockScales& block : blocks) {
    auto* const factors = reinterpret_cast<f16*>(at) + row % kPanel;
    factors[0] = to_f16(block.factor);
    if (w.has_mins) factors[kPanel] = to_f16(block.min_factor);
    at += w.factor_bytes();
    for (int64_t g = 0; g < n_groups; ++g, at += w.number_bytes()) {
      at[row % kPanel] = uint8_t(block.scales[g]);
      if (w.has_mins) at[kPanel + row % kPanel] = uint8_t(block.mins[g]);
    }
  }
}

void clear_panel(const DeviceTensor& tensor, int64_t panel) {
  const Tensor rows = tensor.view().rows(panel, 1);
  std::fill_n(static_cast<char*>(rows.data), rows.n_bytes(), char{0});
}

}  // namespace

CodeRows code_rows(const QuantizedMatrix& host) {
  const bool half_scales = fits_f16(host.scales) && fits_f16(host.mins);
  return {.out_dim = host.out_dim(),
          .in_dim = host.in_dim(),
          .dtype = host.codes.dtype,
          .format = {.bits = host.bits(),
                     .group = host.group,
                     .has_mins = host.asymmetric(),
                     .scales = half_scales ? DType::F16 : DType::F32,
                     .table = host.table},
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
  return {.out_dim = host.shape[0],
          .in_dim = host.shape[1],
          .dtype = host.dtype,
          .format = group_format(host.dtype),
          .read = [host](CodeRow& to, int64_t row) {
            const auto* block = static_cast<const std::byte*>(host.rows(row, 1).data);
            if (to.blocks.empty()) {
              return unpack_groups(to.codes.data(), to.scales.data(), to.mins.data(), block,
                                   host.dtype, host.shape[1]);
            }
            uint8_t* codes = to.codes.data();
            for (BlockScales& scales : to.blocks) {
              unpack_block(codes, scales, block, host.dtype);
              codes += info(host.dtype).block_elements;
              block += info(host.dtype).block_bytes;
            }
          }};
}

Matrix allocate_codes(const CodeRows& rows, Backend& backend) {
  const GroupFormat& format = rows.format;
  const int64_t panels = n_panels(rows.out_dim);
  Matrix matrix;
  matrix.out_dim = rows.out_dim;
  matrix.in_dim = rows.in_dim;
  matrix.group = format.group;
  matrix.dtype = rows.dtype;
  matrix.table = format.table;
  matrix.storage =
      backend.allocate(DType::U8, {panels, packed_panel_bytes(rows.in_dim, format.bits)});
  const Shape groups{panels, rows.in_dim / format.group, kPanel};
  if (format.products) {
    MINFER_CHECK(
        rows.in_dim % kFactorColumns == 0 && (format.group == kBrick || format.group == kBrick / 2),
        "products of ", rows.in_dim, " columns by ", format.group);
    matrix.scales =
        backend.allocate(DType::U8, {panels, scale_bytes(format, rows.in_dim * kPanel)});
  } else {
    matrix.scales = backend.allocate(format.scales, groups);
    if (format.has_mins) matrix.mins = backend.allocate(format.scales, groups);
  }
  matrix.n_bytes = matrix.storage.view().n_bytes() + matrix.scales.view().n_bytes() +
                   (matrix.mins ? matrix.mins.view().n_bytes() : 0);
  return matrix;
}

void pack_code_panel(const Matrix& to, const CodeRows& rows, int64_t panel) {
  const GroupFormat& format = rows.format;
  const bool products = format.products;
  const auto n_groups = size_t(products ? 0 : rows.in_dim / format.group);
  CodeRow row{
      .codes = std::vector<uint8_t>(size_t(padded_cols(rows.in_dim))),
      .scales = std::vector<float>(n_groups),
      .mins = std::vector<float>(format.has_mins ? n_groups : 0),
      .blocks = std::vector<BlockScales>(size_t(products ? rows.in_dim / kFactorColumns : 0))};
  const int64_t begin = panel * kPanel, n_rows = std::min(kPanel, rows.out_dim - begin);
  if (n_rows < kPanel) {
    clear_panel(to.storage, panel);
    clear_panel(to.scales, panel);
    if (to.mins) clear_panel(to.mins, panel);
  }
  auto* const words = static_cast<uint32_t*>(to.storage.view().rows(panel, 1).data);
  for (int64_t lane = 0; lane < n_rows; ++lane) {
    rows.read(row, begin + lane);
    pack_lane(format.bits, words + lane, row.codes.data(), rows.in_dim);
    if (products) {
      pack_products(to, row.blocks, begin + lane);
    } else {
      pack_scales(to.scales, row.scales, begin + lane);
      if (to.mins) pack_scales(to.mins, row.mins, begin + lane);
    }
  }
}

int64_t step_columns(int64_t in_dim, int64_t group) {
  return group == in_dim || group % kBrick == 0 ? kBrick : kBrick / 2;
}

PackedCodes packed_codes(const Matrix& matrix) {
  const bool is_codes = matrix.dtype == DType::U4 || matrix.dtype == DType::U8;
  const GroupFormat stored = is_codes ? GroupFormat{.bits = matrix.dtype == DType::U4 ? 4 : 8,
                                                    .group = matrix.group,
                                                    .has_mins = bool(matrix.mins),
                                                    .scales = matrix.scales.view().dtype}
                                      : group_format(matrix.dtype);
  const int64_t step = step_columns(matrix.in_dim, matrix.group);
  return {.codes = matrix.storage.view().as<const uint8_t>(),
          .table = matrix.table != CodeTable::None ? entries_of(matrix.table).data() : nullptr,
          .scales = matrix.scales.view().data,
          .mins = matrix.mins.view().data,
          .scale_type = matrix.scales.view().dtype,
          .has_mins = stored.has_mins,
          .bits = stored.bits,
          .n_groups = matrix.in_dim / matrix.group,
          .step = step,
          .steps_per_group = ceil_div(matrix.group, step),
          .n_steps = ceil_div(matrix.in_dim, step)};
}

void unpack_code_row(float* out, const Matrix& matrix, int64_t row) {
  const PackedCodes w = packed_codes(matrix);
  const CodeValue value{w.bits, w.has_mins, matrix.table};
  const int64_t panel = row / kPanel, lane = row % kPanel;
  const uint8_t* const codes = w.codes + panel * packed_panel_bytes(matrix.in_dim, w.bits);
  for (int64_t g = 0; g < w.n_groups; ++g) {
    const auto [scale, min] = scale_at(w, panel, g, lane);
    for (int64_t i = g * matrix.group; i < (g + 1) * matrix.group; ++i) {
      const float x = float(value(code_at(codes, w.bits, lane, i))) * scale;
      out[i] = w.has_mins ? x + min : x;
    }
  }
}

}  // namespace minfer::cpu
