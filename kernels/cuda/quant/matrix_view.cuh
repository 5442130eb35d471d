#pragma once

#include <bit>

#include "kernels/cuda/launchers.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/quant/packed_layout.h"

namespace minfer::cuda {

// The scales of packed codes, or their mins: of rows g and g + 8 of a row tile.
struct ScalePairs {
  const void* data = nullptr;  // null: mins that are not there
  DType dtype = DType::F32;    // F16, F32, or U8: products
  int n_units = 0;             // per row
  int units_shift = 0;         // of products: log2 of the units of a chunk
  int record_bytes = 0;

  __host__ __device__ bool exist() const { return data != nullptr; }
  __device__ float2 at(int64_t row_tile, int unit, int g) const {
    if (dtype == DType::U8) {
      const int64_t record = row_tile * (n_units >> units_shift) + (unit >> units_shift);
      const auto* const bytes = static_cast<const uint8_t*>(data) + record * record_bytes;
      const float2 factors = __half22float2(reinterpret_cast<const __half2*>(bytes)[g]);
      const int in_chunk = unit & ((1 << units_shift) - 1);
      const uint8_t* const numbers = bytes + PackedLayout::number_place(g, in_chunk);
      return {factors.x * float(numbers[0] - 128), factors.y * float(numbers[4] - 128)};
    }
    const int64_t i = (row_tile * n_units + unit) * (kTileRows / 2) + g;
    return dtype == DType::F16 ? __half22float2(static_cast<const __half2*>(data)[i])
                               : static_cast<const float2*>(data)[i];
  }
};

// A Matrix of any type, for kernels that read single elements.
struct MatrixView {
  const void* data;
  ScalePairs scales, mins;
  int64_t out_dim, in_dim, group;
  DType dtype;
  bool by_rows;         // row-major codes [out, in], scales and minimums [out, in / group]
  PackedLayout layout;  // of packed codes; `bits` is set for row-major codes too
  bool has_table;
  TableBytes table;

  __device__ bool is_float() const { return dtype != DType::U4 && dtype != DType::U8; }
  __host__ __device__ int zero() const {
    return mins.exist() ? 0 : has_table ? 128 : 1 << (layout.bits + layout.high_bits - 1);
  }

  // The scale or the min of an element.
  __device__ float scale_at(const ScalePairs& from, int64_t row, int64_t column) const {
    if (!by_rows) {
      const int unit = layout.unit == 0 ? 0 : int(column / layout.unit);
      const float2 pair = from.at(row / kTileRows, unit, int(row % 8));
      return row / 8 % 2 == 0 ? pair.x : pair.y;
    }
    const int64_t n_groups = in_dim / group, i = row * n_groups + column / group;
    if (from.dtype == DType::F16) return __half2float(static_cast<const __half*>(from.data)[i]);
    return static_cast<const float*>(from.data)[i];
  }

  // With the same roundings as dequantize_row() of kernels/base.
  __device__ float at(int64_t row, int64_t column) const {
    const int64_t i = row * in_dim + column;
    if (dtype == DType::F16) return __half2float(static_cast<const __half*>(data)[i]);
    if (dtype == DType::BF16) return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
    if (dtype == DType::F32) return static_cast<const float*>(data)[i];
    const PackedLayout::Place place = !by_rows ? layout.place(row, column)
                                      : layout.bits == 4
                                          ? PackedLayout::Place{i / 2, int(i % 2 * 4)}
                                          : PackedLayout::Place{i, 0};
    const int byte = static_cast<const uint8_t*>(data)[place.byte];
    int code = byte >> place.shift & ((1 << layout.bits) - 1);
    if (layout.high_bits != 0) {
      const PackedLayout::Place above = layout.high_place(row, column);
      const int bits = static_cast<const uint8_t*>(scales.data)[above.byte] >> above.shift;
      code |= (bits & ((1 << layout.high_bits) - 1)) << layout.bits;
    }
    const float whole = float((has_table ? table.at(code) : code) - zero());
    const float x = __fmul_rn(whole, scale_at(scales, row, column));
    return mins.exist() ? __fadd_rn(x, scale_at(mins, row, column)) : x;
  }
};

inline bool is_packed(const Matrix& w) { return w.dtype == DType::U4 || w.dtype == DType::U8; }

// Whether one launch can read both.
inline bool same_format(const Matrix& a, const Matrix& b) {
  return a.dtype == b.dtype && a.table == b.table && a.group == b.group && a.in_dim == b.in_dim &&
         bool(a.mins) == bool(b.mins) && a.code_bits == b.code_bits &&
         (!is_packed(a) || a.scales.view().dtype == b.scales.view().dtype);
}

inline PackedLayout layout_of(const Matrix& w) {
  MINFER_CHECK(!w.by_rows, "a table for embed() alone");
  MINFER_CHECK(w.code_bits != 0, "packed codes of no bits");
  return packed_layout(w.code_bits, w.out_dim, w.in_dim, w.group,
                       w.scales.view().dtype == DType::U8, bool(w.mins));
}

inline TableBytes table_bytes_of(const Matrix& w) {
  TableBytes table;
  if (w.table == CodeTable::None) return table;
  const auto entries = entries_of(w.table);
  for (size_t i = 0; i < entries.size(); ++i) {
    table.words[i / 4] |= uint32_t(entries[i] + 128) << (8 * (i % 4));
  }
  return table;
}

inline CodeForm code_form_of(const Matrix& w) {
  if (w.table != CodeTable::None) return CodeForm::Table;
  using enum CodeForm;
  for (const CodeForm form : {U2, U3, U4, U5, U6, U8}) {
    if (bits_of(form) + high_bits_of(form) == w.code_bits) return form;
  }
  throw Error(ErrorKind::Internal, cat("packed codes of ", w.code_bits, " bits"));
}

// Whether products are those of a type of GGUF, which kernels are compiled for.
inline bool has_known_products(const Matrix& w) {
  const CodeForm form = code_form_of(w);
  return form != CodeForm::U8 && bool(w.mins) == products_have_mins(form) &&
         layout_of(w).unit == unit_of_products(form);
}

// log2 of the columns of a unit, a power of two. For 0 (the whole row), a shift that gives every
// column unit 0.
inline int unit_shift_of(int64_t unit) { return unit == 0 ? 31 : std::countr_zero(unsigned(unit)); }

inline ScalePairs scale_pairs(const Tensor& scales, const PackedLayout& layout) {
  ScalePairs pairs{.data = scales.data, .dtype = scales.dtype, .n_units = int(layout.n_units)};
  if (layout.products) {
    pairs.units_shift = std::countr_zero(unsigned(layout.units_of_chunk()));
    pairs.record_bytes = layout.record_bytes();
  }
  return pairs;
}

inline MatrixView view_of(const Matrix& w) {
  MatrixView view{};
  view.data = w.storage.view().data;
  view.out_dim = w.out_dim;
  view.in_dim = w.in_dim;
  view.dtype = w.dtype;
  view.has_table = w.table != CodeTable::None;
  view.table = table_bytes_of(w);
  if (is_packed(w)) {
    view.group = w.group;
    view.by_rows = w.by_rows;
    if (w.by_rows) {
      view.layout.bits = w.code_bits;
    } else {
      view.layout = layout_of(w);
    }
    view.scales = scale_pairs(w.scales, view.layout);
    view.mins = scale_pairs(w.mins, view.layout);
  }
  return view;
}

}  // namespace minfer::cuda
