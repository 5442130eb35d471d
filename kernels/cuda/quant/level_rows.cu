#include "kernels/cuda/elementwise/rows.cuh"
#include "kernels/cuda/quant/level_four.cuh"
#include "kernels/cuda/quant/matrix_view.cuh"

// Operands of the integer tensor cores: rows of levels with a scale each (LevelRows).
namespace minfer::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

struct MaxOrNan {
  __device__ float operator()(float a, float b) const { return ptx::max_or_nan(a, b); }
};

// Four levels, rounded to the nearest, ties to even, the first in the lowest byte.
__device__ inline uint32_t pack_four(const float* x, float levels_of_one) {
  uint32_t four = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    four |= uint32_t(__float2int_rn(x[i] * levels_of_one) & 0xFF) << (8 * i);
  }
  return four;
}

// levels[t] = round(x[t] * (127 / most)), scales[t] = most / 127, most = max |x[t]|
//
//   x         [n, dim] T, levels [n, dim] of a byte, rows of whole 16 bytes of x; scales [n]
//   launch    a block a row, the last row first: what made x ended there, and the product begins
//             with the first rows
//   maths     f32. Where x is not finite most is not either, and all levels are 0; a row of zeros
//             has scale 0
//   moves     3 n dim bytes; x is read twice, the second time from L1
template <typename T>
__global__ void __launch_bounds__(kThreads)
    quantize_rows_kernel(uint8_t* levels, float* scales, const T* x, int dim) {
  auto* const scratch = reinterpret_cast<float*>(ptx::dynamic_shared());
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  const int64_t row = int64_t{gridDim.x} - 1 - blockIdx.x;
  const int first = static_cast<int>(threadIdx.x) * kChunk, step = kThreads * kChunk;
  float most = 0;
#pragma unroll 2
  for (int at = first; at < dim; at += step) {
    float v[kChunk];
    load_chunk(v, x + row * dim + at);
#pragma unroll
    for (const float element : v) most = ptx::max_or_nan(most, fabsf(element));
  }
  most = block_reduce(most, MaxOrNan{}, 0, scratch);
  const float levels_of_one = most > 0 ? 127 / most : 0;
#pragma unroll 2
  for (int at = first; at < dim; at += step) {
    float v[kChunk];
    load_chunk(v, x + row * dim + at);
    *reinterpret_cast<uint2*>(levels + row * dim + at) =
        make_uint2(pack_four(v, levels_of_one), pack_four(v + 4, levels_of_one));
  }
  if (threadIdx.x == 0) scales[row] = most / 127;
}

struct PackedMatrix {
  uint8_t* to;
  float* scales_to;
  const uint4* levels;
  const void* scales;
  int n_rows, in_dim, n_chunks, n_column_tiles;
  int end_warp;  // where the warps of these rows end and those of the next part begin
  bool scales_are_f32;
};
struct PackedMatrices {
  PackedMatrix part[kMaxDequantizeParts];
};

// to[row] = levels of w[row] less 128, scales_to[row] = its scale, of packed levels U8 (packed_layout.h)
//
//   to        [n_rows, in_dim] of a byte, in_dim a multiple of 16
//   launch    a warp takes a chunk, 2048 bytes of levels of 16 rows, as dequantize_packed_kernel,
//             the last rows first: eight lanes store 64 adjacent bytes of a row
//   maths     exact
//   moves     the levels read, marked as the first to leave L2, and `to` written once
__global__ void __launch_bounds__(kThreads)
    unpack_levels_kernel(const __grid_constant__ PackedMatrices parts, int n_warps) {
  constexpr int kTileWords = 64, kTiles = 2;
  ptx::let_successor_begin();
  const int lane = int(threadIdx.x) % 32;
  const int warp = int(gridDim.x - 1 - blockIdx.x) * kWarps + int(threadIdx.x) / 32;
  if (warp >= n_warps) return;
  int part = 0, first_warp = 0;
  while (warp >= parts.part[part].end_warp) first_warp = parts.part[part++].end_warp;
  const PackedMatrix& p = parts.part[part];
  const int row_tile = (warp - first_warp) / p.n_chunks;
  const int first_tile = (warp - first_warp) % p.n_chunks * kTiles;
  const int n_tiles = min(p.n_column_tiles - first_tile, kTiles);

  auto* const chunk =
      reinterpret_cast<uint4*>(ptx::dynamic_shared() + threadIdx.x / 32 * kChunkBytes);
  const uint4* const from =
      p.levels + (int64_t{row_tile} * p.n_column_tiles + first_tile) * kTileWords + lane;
  const uint32_t to = ptx::shared_address(chunk + lane);
#pragma unroll
  for (int i = 0; i < kChunkBytes; i += 512) {
    if (i < n_tiles * kTileWords * 16) ptx::copy_async_16(to + i, from + i / 16);
  }
  ptx::copy_async_commit();

  ptx::wait_for_predecessor();
  const int row_of_lane = row_tile * kTileRows + lane;
  if (first_tile == 0 && lane < kTileRows && row_of_lane < p.n_rows) {
    const int64_t at = int64_t{row_tile} * kTileRows + lane % 8 * 2 + lane / 8;
    p.scales_to[row_of_lane] = p.scales_are_f32
                                   ? static_cast<const float*>(p.scales)[at]
                                   : __half2float(static_cast<const __half*>(p.scales)[at]);
  }
  ptx::copy_async_wait<0>();
  __syncwarp();

  const int octet = lane % 8;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const int column = (first_tile + tile) * kTileColumns + octet * 8;
    if (column >= p.in_dim) break;
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const int g = 4 * u + lane / 8;
      const uint4* const words = chunk + tile * kTileWords;
      const LevelFour<8> fours[2] = {{words, g, 2 * octet}, {words, g, 2 * octet + 1}};
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = row_tile * kTileRows + g + 8 * h;
        if (row >= p.n_rows) continue;
        *reinterpret_cast<uint2*>(p.to + int64_t{row} * p.in_dim + column) =
            make_uint2(fours[0].less_128(h), fours[1].less_128(h));
      }
    }
  }
}

void check_rows(const LevelRows& rows, int64_t n, int64_t dim) {
  MINFER_CHECK(rows.levels.dtype == DType::U8 && rows.levels.shape == (Shape{n, dim}) &&
                   rows.scales.dtype == DType::F32 && rows.scales.shape == Shape{n} &&
                   aligned16(rows.levels),
               "rows of levels: ", rows.levels.dtype, " ", rows.levels.shape, ", scales ",
               rows.scales.dtype, " ", rows.scales.shape, ", of [", n, ", ", dim, "]");
}

}  // namespace

void quantize_rows(cudaStream_t stream, const LevelRows& to, Tensor x) {
  const int64_t n = x.shape[0], dim = x.shape[1];
  check_rows(to, n, dim);
  MINFER_CHECK(dim % kChunk == 0 && aligned16(x), "quantize_rows: ", x.shape);
  if (n == 0) return;
  visit_half(x.dtype, [&]<typename T>() {
    launch(quantize_rows_kernel<T>, dim3(narrow<unsigned>(n)), dim3(kThreads), 32 * sizeof(float),
           stream, data_of<uint8_t>(to.levels), data_of<float>(to.scales), data_of<T>(x),
           narrow<int>(dim));
  });
}

bool has_level_rows(const Matrix& w) {
  return w.dtype == DType::U8 && !w.by_rows && !w.mins && w.group == w.in_dim &&
         w.in_dim % 16 == 0;
}

void unpack_levels(cudaStream_t stream, std::span<const UnpackPart> parts) {
  MINFER_CHECK(!parts.empty() && parts.size() <= kMaxDequantizeParts,
               "unpack_levels: ", parts.size(), " parts");
  PackedMatrices matrices{};
  int n_warps = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Matrix& w = *parts[i].w;
    MINFER_CHECK(has_level_rows(w), "unpack_levels: ", w.dtype, ", groups of ", w.group, " of ",
                 w.in_dim);
    check_rows(parts[i].to, w.out_dim, w.in_dim);
    const PackedLayout layout = layout_of(w);
    n_warps = narrow<int>(n_warps + layout.n_row_tiles * layout.n_chunks);
    matrices.part[i] = {.to = data_of<uint8_t>(parts[i].to.levels),
                        .scales_to = data_of<float>(parts[i].to.scales),
                        .levels = data_of<const uint4>(w.storage),
                        .scales = w.scales.view().data,
                        .n_rows = narrow<int>(w.out_dim),
                        .in_dim = narrow<int>(w.in_dim),
                        .n_chunks = narrow<int>(layout.n_chunks),
                        .n_column_tiles = narrow<int>(layout.n_column_tiles),
                        .end_warp = n_warps,
                        .scales_are_f32 = w.scales.view().dtype == DType::F32};
  }
  launch(unpack_levels_kernel, dim3(narrow<unsigned>(ceil_div(n_warps, kWarps))), dim3(kThreads),
         kWarps * kChunkBytes, stream, matrices, n_warps);
}

}  // namespace minfer::cuda
