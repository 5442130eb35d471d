#include <algorithm>

#include "kernels/cuda/elementwise/rows.cuh"
#include "kernels/cuda/quant/code_four.cuh"
#include "kernels/cuda/quant/matrix_view.cuh"

// Makes the operands of the int8 tensor cores: rows of codes with one scale each (CodeRows).
namespace minfer::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

struct MaxOrNan {
  __device__ float operator()(float a, float b) const { return ptx::max_or_nan(a, b); }
};

// Quantizes four values to the nearest code, ties to even; the first code is in the lowest byte.
__device__ inline uint32_t pack_four(const float* x, float codes_of_one) {
  uint32_t four = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    four |= uint32_t(__float2int_rn(x[i] * codes_of_one) & 0xFF) << (8 * i);
  }
  return four;
}

// codes[t] = round(x[t] * (127 / most)), scales[t] = most / 127, most = max |x[t]|
//
//   x         [n, dim] T, rows 16-byte aligned; codes [n, dim] int8; scales [n]
//   launch    one block per row, the last row first: the kernel that wrote x ended with the last
//             rows, and the GEMM begins with the first rows
//   maths     f32. If a row of x is not finite, neither is `most`, and its codes are 0; a row of
//             zeros has scale 0. If `most` is below 4e-37, 127 / most is infinite and the codes are
//             meaningless, but results are as good as 0 all the same
//   moves     3 n dim bytes; x is read twice, the second time from L1
template <typename T>
__global__ void __launch_bounds__(kThreads)
    quantize_rows_kernel(uint8_t* codes, float* scales, const T* x, int dim) {
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
  const float codes_of_one = most > 0 ? 127 / most : 0;
#pragma unroll 2
  for (int at = first; at < dim; at += step) {
    float v[kChunk];
    load_chunk(v, x + row * dim + at);
    *reinterpret_cast<uint2*>(codes + row * dim + at) =
        make_uint2(pack_four(v, codes_of_one), pack_four(v + 4, codes_of_one));
  }
  if (threadIdx.x == 0) scales[row] = most / 127;
}

// A packed matrix (packed_layout.h), and where its rows of codes are written.
struct PackedMatrix {
  uint8_t* to;
  float* scales_to;
  const uint4* codes;
  ScalePairs scales, mins;
  int n_rows, in_dim, n_chunks, n_column_tiles;
  int unit_shift;      // log2 of the columns of a scale
  int end_warp;        // the first warp of the next part
  float bias;          // 2^23 + the zero code: see CodeFour::centered()
  float lowest, most;  // of what a scale multiplies
  TableBytes table;

  __device__ float2 mins_of(int row_tile, int unit, int g) const {
    return mins.exist() ? mins.at(row_tile, unit, g) : float2{0, 0};
  }
};
struct PackedMatrices {
  PackedMatrix part[kMaxDequantizeParts];

  // Returns the part that a warp works on, and makes `warp` its index within that part.
  __device__ const PackedMatrix& of_warp(int& warp) const {
    int i = 0, first = 0;
    while (warp >= part[i].end_warp) first = part[i++].end_warp;
    warp -= first;
    return part[i];
  }
};

// scales_to[row] = the largest magnitude that any code of the row could stand for, over 127
//
//   launch    one warp per 16 rows; a lane takes every fourth unit of two of them
//   maths     f32: the lowest and the highest value of each unit, as dequantize_row() has them
//   moves     the scales and minimums
__global__ void __launch_bounds__(kThreads)
    row_scales_kernel(const __grid_constant__ PackedMatrices parts, int n_warps) {
  ptx::let_successor_begin();
  int warp = int(blockIdx.x) * kWarps + int(threadIdx.x) / 32;
  if (warp >= n_warps) return;
  const PackedMatrix& p = parts.of_warp(warp);
  const int lane = int(threadIdx.x) % 32, g = lane / 4;
  const auto most_of = [&](float most, float scale, float min) {
    const float low = __fadd_rn(__fmul_rn(p.lowest, scale), min);
    const float high = __fadd_rn(__fmul_rn(p.most, scale), min);
    return ptx::max_or_nan(most, ptx::max_or_nan(fabsf(low), fabsf(high)));
  };
  float2 most{0, 0};
#pragma unroll 8
  for (int unit = lane % 4; unit < p.scales.n_units; unit += 4) {  // the scales of padding are 0
    const float2 scale = p.scales.at(warp, unit, g), min = p.mins_of(warp, unit, g);
    most = {most_of(most.x, scale.x, min.x), most_of(most.y, scale.y, min.y)};
  }
#pragma unroll
  for (int distance = 1; distance < 4; distance *= 2) {
    most.x = ptx::max_or_nan(most.x, __shfl_xor_sync(kAllLanes, most.x, distance));
    most.y = ptx::max_or_nan(most.y, __shfl_xor_sync(kAllLanes, most.y, distance));
  }
  ptx::wait_for_predecessor();
  const int row = warp * kTileRows + g;
  if (lane % 4 != 0) return;
  if (row < p.n_rows) p.scales_to[row] = most.x / 127;
  if (row + 8 < p.n_rows) p.scales_to[row + 8] = most.y / 127;
}

// to[row] = round(w[row] / scales_to[row])
//
//   to        [n_rows, in_dim] int8, in_dim a multiple of 16
//   launch    a warp takes a chunk of 16 rows, as dequantize_packed_kernel,
//             the last rows first; eight lanes store 64 adjacent bytes of a row
//   maths     kIsExact: the U8 codes minus 128, which are w[row] over its own scale; that scale is
//             copied to scales_to. Else values are dequantized as by dequantize_row(), multiplied
//             in f32 by the reciprocal of scales_to (row_scales_kernel) and rounded to nearest,
//             ties to even
//   moves     the codes read, and `to` written once
template <CodeForm kCodes, bool kIsExact>
__global__ void __launch_bounds__(kThreads)
    unpack_codes_kernel(const __grid_constant__ PackedMatrices parts, int n_warps) {
  static_assert(!kIsExact || kCodes == CodeForm::U8);
  using Chunk = StagedChunk<kCodes>;
  constexpr int kTiles = Chunk::kTiles;
  ptx::let_successor_begin();
  const int lane = int(threadIdx.x) % 32;
  int warp = int(gridDim.x - 1 - blockIdx.x) * kWarps + int(threadIdx.x) / 32;
  if (warp >= n_warps) return;
  const PackedMatrix& p = parts.of_warp(warp);
  const int row_tile = warp / p.n_chunks, first_tile = warp % p.n_chunks * kTiles;
  const int n_tiles = min(p.n_column_tiles - first_tile, kTiles);

  const Chunk chunk{ptx::dynamic_shared() + threadIdx.x / 32 * Chunk::kBytes};
  const int64_t tiles_before = int64_t{row_tile} * p.n_column_tiles + first_tile;
  chunk.fetch(p.codes + tiles_before * Chunk::kTileWords, n_tiles, p.scales,
              int64_t{row_tile} * p.n_chunks + warp % p.n_chunks);

  // In each tile, this lane unpacks columns [8 octet, 8 octet + 8) of rows g and g + 8, for two g.
  const int octet = lane % 8;
  const auto column_of = [&](int tile) { return (first_tile + tile) * kTileColumns + octet * 8; };
  float2 scales[kTiles][2] = {}, mins[kTiles][2] = {};
  if constexpr (!kIsExact) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        const int unit = column_of(tile) >> p.unit_shift;
        scales[tile][u] = p.scales.at(row_tile, unit, 4 * u + lane / 8);
        mins[tile][u] = p.mins_of(row_tile, unit, 4 * u + lane / 8);
      }
    }
  }

  ptx::wait_for_predecessor();
  float codes_of_one[2][2];
  if constexpr (kIsExact) {
    const int row = row_tile * kTileRows + lane;
    if (first_tile == 0 && lane < kTileRows && row < p.n_rows) {
      const float2 two = p.scales.at(row_tile, 0, lane % 8);
      p.scales_to[row] = lane < 8 ? two.x : two.y;
    }
  } else {
#pragma unroll
    for (int u = 0; u < 2; ++u) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = row_tile * kTileRows + 4 * u + lane / 8 + 8 * h;
        const float scale = p.scales_to[min(row, p.n_rows - 1)];
        codes_of_one[u][h] = scale > 0 ? 1 / scale : 0;
      }
    }
  }
  ptx::copy_async_wait<0>();
  __syncwarp();

#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const int column = column_of(tile);
    if (column >= p.in_dim) break;
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const int g = 4 * u + lane / 8;
      const auto four = [&](int i) { return chunk.four(tile, g, 2 * octet + i, p.table); };
      const decltype(four(0)) fours[2] = {four(0), four(1)};
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = row_tile * kTileRows + g + 8 * h;
        if (row >= p.n_rows) continue;
        uint2 eight;
        if constexpr (kIsExact) {
          eight = make_uint2(fours[0].less_128(h), fours[1].less_128(h));
        } else {
          const float scale = h == 0 ? scales[tile][u].x : scales[tile][u].y;
          const float min = h == 0 ? mins[tile][u].x : mins[tile][u].y;
          float values[8];
#pragma unroll
          for (int c = 0; c < 8; ++c) {
            values[c] = __fmul_rn(fours[c / 4].centered(h, c % 4, p.bias), scale);
            if (p.mins.exist()) values[c] = __fadd_rn(values[c], min);
          }
          eight = make_uint2(pack_four(values, codes_of_one[u][h]),
                             pack_four(values + 4, codes_of_one[u][h]));
        }
        *reinterpret_cast<uint2*>(p.to + int64_t{row} * p.in_dim + column) = eight;
      }
    }
  }
}

// The parts of one launch.
class PartList {
 public:
  void add(const UnpackPart& part, int64_t warps) {
    const Matrix& w = *part.w;
    const PackedLayout layout = layout_of(w);
    const MatrixView view = view_of(w);
    float lowest = float(-view.zero());
    float most = float((1 << (layout.bits + layout.high_bits)) - 1 - view.zero());
    if (w.table != CodeTable::None) {
      const auto entries = std::ranges::minmax(entries_of(w.table));
      lowest = float(entries.min);
      most = float(entries.max);
    }
    n_warps_ = narrow<int>(n_warps_ + warps);
    parts_.part[n_parts_++] = {.to = data_of<uint8_t>(part.to.codes),
                               .scales_to = data_of<float>(part.to.scales),
                               .codes = data_of<const uint4>(w.storage),
                               .scales = view.scales,
                               .mins = view.mins,
                               .n_rows = narrow<int>(w.out_dim),
                               .in_dim = narrow<int>(w.in_dim),
                               .n_chunks = narrow<int>(layout.n_chunks),
                               .n_column_tiles = narrow<int>(layout.n_column_tiles),
                               .unit_shift = unit_shift_of(layout.unit),
                               .end_warp = n_warps_,
                               .bias = 8388608.0f + float(view.zero()),
                               .lowest = lowest,
                               .most = most,
                               .table = view.table};
  }
  void run(void (*kernel)(PackedMatrices, int), int shared_of_warp, cudaStream_t stream) const {
    if (n_parts_ == 0) return;
    launch(kernel, dim3(narrow<unsigned>(ceil_div(n_warps_, kWarps))), dim3(kThreads),
           kWarps * shared_of_warp, stream, parts_, n_warps_);
  }
  template <CodeForm kCodes, bool kIsExact>
  void unpack(cudaStream_t stream) const {
    run(unpack_codes_kernel<kCodes, kIsExact>, StagedChunk<kCodes>::kBytes, stream);
  }

 private:
  PackedMatrices parts_{};
  size_t n_parts_ = 0;
  int n_warps_ = 0;
};

// Whether the codes of w need no requantization to be CodeRows.
bool has_code_rows(const Matrix& w) {
  return w.dtype == DType::U8 && !w.mins && w.group == w.in_dim;
}

void check_rows(const CodeRows& rows, int64_t n, int64_t dim) {
  MINFER_CHECK(rows.codes.dtype == DType::U8 && rows.codes.shape == (Shape{n, dim}) &&
                   rows.scales.dtype == DType::F32 && rows.scales.shape == Shape{n} &&
                   aligned16(rows.codes),
               "rows of codes: ", rows.codes.dtype, " ", rows.codes.shape, ", scales ",
               rows.scales.dtype, " ", rows.scales.shape, ", of [", n, ", ", dim, "]");
}

}  // namespace

void quantize_rows(cudaStream_t stream, const CodeRows& to, Tensor x) {
  const int64_t n = x.shape[0], dim = x.shape[1];
  check_rows(to, n, dim);
  MINFER_CHECK(dim % kChunk == 0 && aligned16(x), "quantize_rows: ", x.shape);
  if (n == 0) return;
  visit_half(x.dtype, [&]<typename T>() {
    launch(quantize_rows_kernel<T>, dim3(narrow<unsigned>(n)), dim3(kThreads), 32 * sizeof(float),
           stream, data_of<uint8_t>(to.codes), data_of<float>(to.scales), data_of<T>(x),
           narrow<int>(dim));
  });
}

bool fits_code_rows(const Matrix& w) {
  return is_packed(w) && !w.by_rows && w.in_dim % 16 == 0 && w.in_dim <= kMaxCodeColumns;
}

void unpack_codes(cudaStream_t stream, std::span<const UnpackPart> parts) {
  MINFER_CHECK(!parts.empty() && parts.size() <= kMaxDequantizeParts,
               "unpack_codes: ", parts.size(), " parts");
  PartList exact, rows, of_form[kCodeForms];
  for (const UnpackPart& part : parts) {
    const Matrix& w = *part.w;
    MINFER_CHECK(fits_code_rows(w), "unpack_codes: ", w.dtype, ", rows of ", w.in_dim);
    check_rows(part.to, w.out_dim, w.in_dim);
    const PackedLayout layout = layout_of(w);
    const int64_t n_chunks = layout.n_row_tiles * layout.n_chunks;
    if (has_code_rows(w)) {
      exact.add(part, n_chunks);
    } else {
      rows.add(part, layout.n_row_tiles);
      of_form[size_t(code_form_of(w))].add(part, n_chunks);
    }
  }
  exact.unpack<CodeForm::U8, true>(stream);
  rows.run(row_scales_kernel, 0, stream);
  for_each_form(
      [&]<CodeForm kCodes>() { of_form[size_t(kCodes)].template unpack<kCodes, false>(stream); });
}

}  // namespace minfer::cuda
