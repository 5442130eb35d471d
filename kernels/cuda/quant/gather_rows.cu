#include <bit>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/quant/code_four.cuh"
#include "kernels/cuda/quant/matrix_view.cuh"

namespace minfer::cuda {
namespace {

constexpr int kGatherThreads = 256;

// Readers of four adjacent elements of a table row, where `column` is a multiple of four: of
// floats, of codes packed for GEMV, and of row-major codes. load() does not branch, so that all
// loads of a thread are in flight at once; floats() converts what was loaded. A thread reads
// kOfThread fours: with four fours of floats, or two of codes, gathering 8192 rows of 4096 took 2 %
// longer.
template <typename T>
struct FloatFours {
  static constexpr int kOfThread = 2;
  using Raw = Vec<T, 4>;
  const T* data;
  int64_t in_dim;

  __device__ Raw load(int64_t row, int column) const {
    return *reinterpret_cast<const Raw*>(data + row * in_dim + column);
  }
  __device__ float4 floats(const Raw& raw, int64_t) const {
    return {to_float(raw[0]), to_float(raw[1]), to_float(raw[2]), to_float(raw[3])};
  }
};

// The scale of each unit, and its minimum, if there are any.
template <typename Scale>
struct Units {
  struct Raw {
    Scale scale;
    float min;
  };
  const Scale* scales;
  const float* mins;
  int shift;   // log2 of a unit's columns
  float bias;  // 2^23 + the zero code: see CodeFour::centered()

  Units(const MatrixView& table, int unit_shift)
      : scales(static_cast<const Scale*>(table.scales.data)),
        mins(static_cast<const float*>(table.mins.data)),
        shift(unit_shift),
        bias(8388608.0f + float(table.zero())) {}

  __device__ Raw load(int64_t unit) const {
    return {scales[unit], mins == nullptr ? 0 : mins[unit]};
  }
  // Has the same roundings as dequantize_row() of kernels/base.
  __device__ float value(float code_less_zero, const Raw& raw) const {
    const float x = __fmul_rn(code_less_zero, to_float(raw.scale));
    return mins == nullptr ? x : __fadd_rn(x, raw.min);
  }
};
template <int kBits, typename Scale>
struct PackedFours {
  static constexpr int kOfThread = 4;
  struct Raw {
    CodeFour<kBits> codes;
    typename Units<Scale>::Raw unit;
  };
  const uint4* data;
  PackedLayout layout;
  Units<Scale> units;

  PackedFours(const MatrixView& table, int unit_shift)
      : data(static_cast<const uint4*>(table.data)),
        layout(table.layout),
        units(table, unit_shift) {}

  __device__ Raw load(int64_t row, int column) const {
    const int64_t row_tile = row / kTileRows;
    const int g = int(row % 8), h = int(row / 8 % 2);
    const uint4* const tile =
        data + (row_tile * layout.n_column_tiles + column / kTileColumns) * 8 * kBits;
    const int64_t unit = row_tile * layout.n_units + (column >> units.shift);
    return {{tile, g, column % kTileColumns / 4}, units.load(unit * kTileRows + 2 * g + h)};
  }
  __device__ float4 floats(const Raw& raw, int64_t row) const {
    const auto at = [&](int c) {
      return units.value(raw.codes.centered(int(row / 8 % 2), c, units.bias), raw.unit);
    };
    return {at(0), at(1), at(2), at(3)};
  }
};
template <int kBits, typename Scale>
struct FoursByRows {
  static constexpr int kOfThread = 4;
  struct Raw {
    uint32_t codes;
    typename Units<Scale>::Raw unit;
  };
  const uint8_t* data;
  int64_t bytes_of_row, units_of_row;
  Units<Scale> units;

  FoursByRows(const MatrixView& table, int unit_shift)
      : data(static_cast<const uint8_t*>(table.data)),
        bytes_of_row(table.in_dim * kBits / 8),
        units_of_row(table.in_dim / table.group),
        units(table, unit_shift) {}

  __device__ Raw load(int64_t row, int column) const {
    const uint8_t* const from = data + row * bytes_of_row + column * kBits / 8;
    return {kBits == 8 ? *reinterpret_cast<const uint32_t*>(from)
                       : *reinterpret_cast<const uint16_t*>(from),
            units.load(row * units_of_row + (column >> units.shift))};
  }
  __device__ float4 floats(const Raw& raw, int64_t) const {
    const auto at = [&](int c) {  // floats from 2^23 on differ by 1
      const uint32_t byte = kBits == 8 ? uint32_t(c) : uint32_t(c / 2);
      const uint32_t bytes = kBits == 8 ? raw.codes : raw.codes >> (c % 2 * 4) & 0x0F0F;
      const float code = __uint_as_float(__byte_perm(bytes, 0x4B000000, 0x7650 + byte));
      return units.value(code - units.bias, raw.unit);
    };
    return {at(0), at(1), at(2), at(3)};
  }
};

// out[i, column] = table[ids[i], column]
//
//   out       [n, dim] F32, rows 16-byte aligned
//   launch    blocks_of_row blocks of 256 threads per row. A thread gathers kOfThread fours of the
//             row, 1024 columns apart, so that a warp stores whole sectors
//   maths     as dequantize_row() of kernels/base, exactly
//   moves     n rows of the table, and out. Packed codes interleave two rows in pieces of 64 bytes,
//             so that both are read
template <typename Fours>
__global__ void __launch_bounds__(kGatherThreads)
    gather_rows_kernel(float* out, const __grid_constant__ Fours table, int dim, const int32_t* ids,
                       unsigned blocks_of_row) {
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  constexpr int kOfThread = Fours::kOfThread;
  const unsigned row = blockIdx.x / blocks_of_row, block = blockIdx.x % blocks_of_row;
  const int64_t from = ids[row];
  const int first = int(block * kOfThread * kGatherThreads + threadIdx.x) * 4;
  const auto column = [&](int i) { return first + i * kGatherThreads * 4; };
  typename Fours::Raw raw[kOfThread];
#pragma unroll
  for (int i = 0; i < kOfThread; ++i) raw[i] = table.load(from, min(column(i), dim - 4));
#pragma unroll
  for (int i = 0; i < kOfThread; ++i) {
    float4* const to = reinterpret_cast<float4*>(out + int64_t{row} * dim + column(i));
    if (column(i) < dim) *to = table.floats(raw[i], from);
  }
}

// The same for any dim, alignment, groups, table of codes and products
//
//   launch    blocks_of_row blocks of 256 threads per row; a thread gathers one element
__global__ void __launch_bounds__(kGatherThreads)
    plain_gather_rows_kernel(float* out, MatrixView table, const int32_t* ids,
                             unsigned blocks_of_row) {
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  const int64_t i = blockIdx.x / blocks_of_row;
  const int64_t column = int64_t{blockIdx.x % blocks_of_row} * kGatherThreads + threadIdx.x;
  if (column < table.in_dim) out[i * table.in_dim + column] = table.at(ids[i], column);
}

}  // namespace

void gather_rows(cudaStream_t stream, Tensor out, const Matrix& table, const int32_t* ids) {
  const int64_t n = out.shape[0];
  MINFER_CHECK(out.dtype == DType::F32 && out.shape == (Shape{n, table.in_dim}),
               "gather_rows: out ", out.dtype, " ", out.shape, " of rows of ", table.in_dim);
  if (n == 0) return;
  const MatrixView view = view_of(table);
  const auto blocks_of_row = [&](int64_t columns_of_thread) {
    return narrow<unsigned>(ceil_div(table.in_dim, columns_of_thread * kGatherThreads));
  };
  const int64_t unit = table.group == table.in_dim ? 0 : table.group;  // of row-major codes
  if (table.in_dim % 4 != 0 || !aligned16(out.data) || !aligned16(view.data) || view.has_table ||
      view.scales.dtype == DType::U8 || (table.by_rows && std::popcount(uint64_t(unit)) > 1)) {
    const unsigned n_blocks = blocks_of_row(1);
    return launch(plain_gather_rows_kernel, dim3(narrow<unsigned>(n * n_blocks)),
                  dim3(kGatherThreads), 0, stream, data_of<float>(out), view, ids, n_blocks);
  }
  const auto run = [&]<typename Fours>(const Fours& fours) {
    const unsigned n_blocks = blocks_of_row(4 * Fours::kOfThread);
    launch(gather_rows_kernel<Fours>, dim3(narrow<unsigned>(n * n_blocks)), dim3(kGatherThreads), 0,
           stream, data_of<float>(out), fours, narrow<int>(table.in_dim), ids, n_blocks);
  };
  const auto run_codes = [&]<template <int, typename> typename Fours>(int64_t columns) {
    const int shift = unit_shift_of(columns);
    const bool is_u4 = table.dtype == DType::U4;
    if (view.scales.dtype == DType::F16) {
      return is_u4 ? run(Fours<4, __half>(view, shift)) : run(Fours<8, __half>(view, shift));
    }
    return is_u4 ? run(Fours<4, float>(view, shift)) : run(Fours<8, float>(view, shift));
  };
  if (table.by_rows) return run_codes.template operator()<FoursByRows>(unit);
  if (is_packed(table)) return run_codes.template operator()<PackedFours>(view.layout.unit);
  visit_device_float(table.dtype, [&]<typename T>() {
    run(FloatFours<T>{static_cast<const T*>(view.data), table.in_dim});
  });
}

}  // namespace minfer::cuda
