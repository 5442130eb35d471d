#pragma once

#include <bit>

#include "kernels/cuda/launchers.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/quant/packed_layout.h"

namespace minfer::cuda {

// A Matrix of any type, for kernels that read single elements.
struct MatrixView {
  const void* data;
  const void* scales;
  const float* mins;
  int64_t in_dim, group;
  DType dtype, scale_dtype;
  bool by_rows;         // row-major codes [out, in], scales and minimums [out, in / group]
  PackedLayout layout;  // of packed codes; `bits` is set for row-major codes too
  bool has_table;
  TableBytes table;

  __device__ float scale_at(int64_t i) const {
    return scale_dtype == DType::F16 ? __half2float(static_cast<const __half*>(scales)[i])
                                     : static_cast<const float*>(scales)[i];
  }
  __device__ bool is_float() const { return dtype != DType::U4 && dtype != DType::U8; }
  __host__ __device__ int zero() const {
    return mins != nullptr ? 0 : has_table ? 128 : 1 << (layout.bits - 1);
  }

  // The value of a code whose scale is number `at`, with the same roundings as dequantize_row() of
  // kernels/base.
  __device__ float value(int code, int64_t at) const {
    const float x = __fmul_rn(float((has_table ? table.at(code) : code) - zero()), scale_at(at));
    return mins == nullptr ? x : __fadd_rn(x, mins[at]);
  }

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
    return value(layout.bits == 4 ? byte >> place.shift & 15 : byte,
                 by_rows ? i / group : layout.scale_index(row, column));
  }
};

inline bool is_packed(const Matrix& w) { return w.dtype == DType::U4 || w.dtype == DType::U8; }

// Whether one launch can read both.
inline bool same_format(const Matrix& a, const Matrix& b) {
  return a.dtype == b.dtype && a.table == b.table && a.group == b.group && a.in_dim == b.in_dim &&
         bool(a.mins) == bool(b.mins) &&
         (!is_packed(a) || a.scales.view().dtype == b.scales.view().dtype);
}

inline PackedLayout layout_of(const Matrix& w) {
  MINFER_CHECK(!w.by_rows, "a table for embed() alone");
  return packed_layout(w.dtype == DType::U4 ? 4 : 8, w.out_dim, w.in_dim, w.group);
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
  return w.table != CodeTable::None ? CodeForm::Table
         : w.dtype == DType::U4     ? CodeForm::U4
                                    : CodeForm::U8;
}

// log2 of the columns of a unit, a power of two. For 0 (the whole row), a shift that gives every
// column unit 0.
inline int unit_shift_of(int64_t unit) { return unit == 0 ? 31 : std::countr_zero(unsigned(unit)); }

inline MatrixView view_of(const Matrix& w) {
  MatrixView view{};
  view.data = w.storage.view().data;
  view.in_dim = w.in_dim;
  view.dtype = w.dtype;
  view.has_table = w.table != CodeTable::None;
  view.table = table_bytes_of(w);
  if (is_packed(w)) {
    view.scales = w.scales.view().data;
    view.mins = static_cast<const float*>(w.mins.view().data);
    view.scale_dtype = w.scales.view().dtype;
    view.group = w.group;
    view.by_rows = w.by_rows;
    if (w.by_rows) {
      view.layout.bits = w.dtype == DType::U4 ? 4 : 8;
    } else {
      view.layout = layout_of(w);
    }
  }
  return view;
}

}  // namespace minfer::cuda
