#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/quant/level_four.cuh"
#include "kernels/cuda/quant/matrix_view.cuh"

namespace minfer::cuda {
namespace {

constexpr int kGatherThreads = 256, kFoursOfThread = 2;

// Four adjacent elements of a row of a table, `column` a multiple of four: of floats, of levels
// packed for products, and of levels by rows.
template <typename T>
struct FloatFours {
  const T* data;
  int64_t in_dim;

  __device__ void load(float (&to)[4], int64_t row, int column) const {
    const auto four = *reinterpret_cast<const Vec<T, 4>*>(data + row * in_dim + column);
#pragma unroll
    for (int c = 0; c < 4; ++c) to[c] = to_float(four[c]);
  }
};
template <int kBits>
struct PackedFours {
  MatrixView table;
  int unit_shift;  // log2 of the columns of a scale

  __device__ void load(float (&to)[4], int64_t row, int column) const {
    const PackedLayout& layout = table.layout;
    const int64_t row_tile = row / kTileRows;
    const int g = int(row % 8), h = int(row / 8 % 2);
    const auto* const tile = static_cast<const uint4*>(table.data) +
                             (row_tile * layout.n_column_tiles + column / kTileColumns) * 8 * kBits;
    const LevelFour<kBits> levels(tile, g, column % kTileColumns / 4);
    const int64_t unit = int64_t{column} >> unit_shift;
    const int64_t at = (row_tile * layout.n_units + unit) * kTileRows + 2 * g + h;
    const float scale = table.scale_at(at), bias = 8388608.0f + float(table.zero());
    const float min = table.mins == nullptr ? 0 : table.mins[at];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      to[c] = __fmul_rn(levels.centered(h, c, bias), scale);
      if (table.mins != nullptr) to[c] = __fadd_rn(to[c], min);
    }
  }
};
// Groups are whole fours, as cuda_keeps_groups() has them.
template <int kBits>
struct FoursByRows {
  MatrixView table;
  unsigned group, n_groups;  // n_groups: of a row

  __device__ void load(float (&to)[4], int64_t row, int column) const {
    const int64_t first = row * table.in_dim + column;
    const int64_t at = row * n_groups + unsigned(column) / group;
    const float scale = table.scale_at(at);
    const float min = table.mins == nullptr ? 0 : table.mins[at];
    const uint8_t* const from = static_cast<const uint8_t*>(table.data) + first * kBits / 8;
    const uint32_t levels = kBits == 8 ? *reinterpret_cast<const uint32_t*>(from)
                                       : *reinterpret_cast<const uint16_t*>(from);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int level = levels >> (c * kBits) & ((1 << kBits) - 1);
      to[c] = __fmul_rn(float(level - table.zero()), scale);
      if (table.mins != nullptr) to[c] = __fadd_rn(to[c], min);
    }
  }
};

// out[i, column] = table[ids[i], column]
//
//   out       [n, dim] F32, rows of whole 16 bytes
//   launch    a thread two fours of a row's columns, 1024 apart, so that a warp's stores have whole
//             sectors; blocks of 256 threads by rows
//   maths     as dequantize_row() of kernels/base, exactly
//   moves     n rows of the table, of packed levels those beside them too, which share their 64
//             bytes; out
template <typename Fours>
__global__ void __launch_bounds__(kGatherThreads)
    gather_rows_kernel(float* out, const __grid_constant__ Fours table, int dim, const int32_t* ids,
                       unsigned blocks_of_row) {
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  const unsigned row = blockIdx.x / blocks_of_row, block = blockIdx.x % blocks_of_row;
  const int first = int(block * kFoursOfThread * kGatherThreads + threadIdx.x) * 4;
  const int64_t from = ids[row];
  float values[kFoursOfThread][4];
#pragma unroll
  for (int i = 0; i < kFoursOfThread; ++i) {
    const int column = first + i * kGatherThreads * 4;
    if (column < dim) table.load(values[i], from, column);
  }
#pragma unroll
  for (int i = 0; i < kFoursOfThread; ++i) {
    const int column = first + i * kGatherThreads * 4;
    if (column >= dim) break;
    *reinterpret_cast<float4*>(out + int64_t{row} * dim + column) =
        make_float4(values[i][0], values[i][1], values[i][2], values[i][3]);
  }
}

// The same of any dim and alignment
//
//   launch    a thread an element, blocks_of_row blocks of 256 a row
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
  if (table.in_dim % 4 != 0 || !aligned16(out.data) || !aligned16(view.data)) {
    const unsigned n_blocks = blocks_of_row(1);
    return launch(plain_gather_rows_kernel, dim3(narrow<unsigned>(n * n_blocks)),
                  dim3(kGatherThreads), 0, stream, data_of<float>(out), view, ids, n_blocks);
  }
  const auto run = [&]<typename Fours>(const Fours& fours) {
    const unsigned n_blocks = blocks_of_row(4 * kFoursOfThread);
    launch(gather_rows_kernel<Fours>, dim3(narrow<unsigned>(n * n_blocks)), dim3(kGatherThreads), 0,
           stream, data_of<float>(out), fours, narrow<int>(table.in_dim), ids, n_blocks);
  };
  const bool is_u4 = table.dtype == DType::U4;
  if (table.by_rows) {
    const auto group = narrow<unsigned>(table.group);
    const unsigned n_groups = narrow<unsigned>(table.in_dim) / group;
    return is_u4 ? run(FoursByRows<4>{view, group, n_groups})
                 : run(FoursByRows<8>{view, group, n_groups});
  }
  if (is_packed(table)) {
    const int unit_shift = unit_shift_of(view.layout);
    return is_u4 ? run(PackedFours<4>{view, unit_shift}) : run(PackedFours<8>{view, unit_shift});
  }
  visit_device_float(table.dtype, [&]<typename T>() {
    run(FloatFours<T>{static_cast<const T*>(view.data), table.in_dim});
  });
}

}  // namespace minfer::cuda
