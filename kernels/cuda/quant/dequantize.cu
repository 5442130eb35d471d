#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/quant/matrix_view.cuh"

namespace minfer::cuda {
namespace {

constexpr int kDequantizeThreads = 256;

// out[i, column] = w[begin + i, column], of packed levels
//
//   out       [n_rows, in_dim] T, row-major
//   launch    a thread takes one 16-byte word of a tile, at least two rows; tiles from that of row
//             `begin` on
//   maths     as dequantize_row() of kernels/base in f32, then one rounding to T
//   moves     the levels read and out written once
template <typename T>
__global__ void __launch_bounds__(kDequantizeThreads)
    dequantize_packed_kernel(T* out, MatrixView w, int64_t begin, int64_t n_rows, int64_t n_words) {
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  const int64_t index = int64_t{blockIdx.x} * kDequantizeThreads + threadIdx.x;
  if (index >= n_words) return;
  const PackedLayout& layout = w.layout;
  const int64_t word = index + begin / kTileRows * layout.row_tile_bytes() / 16;
  const uint4 raw = static_cast<const uint4*>(w.data)[word];
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
  const bool nibbles = layout.bits == 4;
  const int lane = int(word % 32), g = lane / 4, t = lane % 4;
  const int64_t piece = word / 32, tile = nibbles ? piece : piece / 2;
  const int64_t row0 = tile / layout.n_column_tiles * kTileRows + g;
  const int64_t column0 = tile % layout.n_column_tiles * kTileColumns + t * 4;

#pragma unroll
  for (int i = 0; i < 4; ++i) {  // four columns of one row, or of U4 two rows, at a time
    if (!nibbles && i % 2 != 0) continue;
    const int64_t column = column0 + 16 * (nibbles ? i : int(piece % 2) * 2 + i / 2);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int64_t row = row0 + 8 * h - begin;
      if (row < 0 || row >= n_rows || column >= w.in_dim) continue;
      const int64_t scale = layout.scale_index(row + begin, column);
      struct alignas(8) Halves {
        T at[4];
      } four;
#pragma unroll
      for (int c = 0; c < 4; ++c) {  // column 2 a + b of the four
        const int a = c / 2, b = c % 2;
        const uint32_t level = nibbles ? words[i] >> (4 * (4 * b + 2 * a + h)) & 15u
                                       : words[i / 2 * 2 + a] >> (8 * (2 * h + b)) & 255u;
        four.at[c] = from_float<T>(w.value(int(level), scale));
      }
      T* const to = out + row * w.in_dim + column;
      if (w.in_dim % 4 == 0) {
        *reinterpret_cast<Halves*>(to) = four;
      } else {
        for (int c = 0; c < 4 && column + c < w.in_dim; ++c) to[c] = four.at[c];
      }
    }
  }
}

// The same of float weights: a thread converts one number.
template <typename T>
__global__ void __launch_bounds__(kDequantizeThreads)
    convert_rows_kernel(T* out, MatrixView w, int64_t begin, int64_t n) {
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  const int64_t i = int64_t{blockIdx.x} * kDequantizeThreads + threadIdx.x;
  if (i < n) out[i] = from_float<T>(w.at(begin + i / w.in_dim, i % w.in_dim));
}

// out[i, column] = table[ids[i], column]
//
//   out       [n, dim] F32
//   launch    blocks of 256 columns by rows
__global__ void __launch_bounds__(kDequantizeThreads)
    gather_rows_kernel(float* out, MatrixView table, const int32_t* ids) {
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  const int64_t column = int64_t{blockIdx.x} * kDequantizeThreads + threadIdx.x;
  const int64_t i = blockIdx.y;
  if (column < table.in_dim) out[i * table.in_dim + column] = table.at(ids[i], column);
}

unsigned blocks_of(int64_t n) { return narrow<unsigned>(ceil_div(n, kDequantizeThreads)); }

}  // namespace

void dequantize_rows(cudaStream_t stream, Tensor out, const Matrix& w, int64_t begin) {
  const int64_t n = out.shape[0];
  MINFER_CHECK(out.shape == (Shape{n, w.in_dim}) && begin >= 0 && begin + n <= w.out_dim,
               "dequantize_rows: ", out.shape, " from row ", begin, " of [", w.out_dim, ", ",
               w.in_dim, "]");
  if (n == 0) return;
  const MatrixView view = view_of(w);
  visit_half(out.dtype, [&]<typename T>() {
    if (!is_packed(w)) {
      const int64_t n_elements = n * w.in_dim;
      launch(convert_rows_kernel<T>, dim3(blocks_of(n_elements)), dim3(kDequantizeThreads), 0,
             stream, data_of<T>(out), view, begin, n_elements);
      return;
    }
    const int64_t first_tile = begin / kTileRows, end_tile = ceil_div(begin + n, kTileRows);
    const int64_t n_words = (end_tile - first_tile) * view.layout.row_tile_bytes() / 16;
    launch(dequantize_packed_kernel<T>, dim3(blocks_of(n_words)), dim3(kDequantizeThreads), 0,
           stream, data_of<T>(out), view, begin, n, n_words);
  });
}

void gather_rows(cudaStream_t stream, Tensor out, const Matrix& table, const int32_t* ids) {
  const int64_t n = out.shape[0];
  MINFER_CHECK(out.dtype == DType::F32 && out.shape == (Shape{n, table.in_dim}) && n <= 65535,
               "gather_rows: out ", out.dtype, " ", out.shape, " of rows of ", table.in_dim);
  if (n == 0) return;
  launch(gather_rows_kernel, dim3(blocks_of(table.in_dim), narrow<unsigned>(n)),
         dim3(kDequantizeThreads), 0, stream, data_of<float>(out), view_of(table), ids);
}

}  // namespace minfer::cuda
