#include <type_traits>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/quant/code_four.cuh"
#include "kernels/cuda/quant/matrix_view.cuh"

namespace minfer::cuda {
namespace {

constexpr int kDequantizeThreads = 256;
constexpr int kWarps = kDequantizeThreads / 32;

// Rows of a packed matrix, and where they are written.
struct PackedRows {
  void* out;
  const uint4* codes;  // of the whole matrix, as are scales and mins
  ScalePairs scales, mins;
  int64_t first_row_tile, n_column_tiles;
  int64_t n_rows;
  int skipped;  // rows of the first tile in front of the first requested row
  int in_dim, n_chunks;
  int unit_shift;     // log2 of the columns of a scale
  int end_warp;       // the first warp of the next part
  bool stores_words;  // rows of out are 16-byte aligned
  float bias;         // 2^23 + the zero code: see CodeFour::centered()
  TableBytes table;
};
struct PackedParts {
  PackedRows part[kMaxDequantizeParts];
};

// Rounds both to T, and returns the bits of the pair.
template <typename T>
__device__ inline uint32_t round_pair(float first, float second) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 pair = __floats2half2_rn(first, second);
    return *reinterpret_cast<const uint32_t*>(&pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
}

// out[i, column] = w[begin + i, column], for packed codes
//
//   out       [n_rows, in_dim] T, row-major, of each part
//   launch    a warp takes a chunk of 16 rows: each lane makes 16-byte copies to shared memory,
//             two of U2, else four, from which eight lanes store 128 adjacent bytes of a row.
//             Weights are read before wait_for_predecessor() (PDL). The last rows go first: the
//             GEMM begins with the first rows, which are then the likeliest to be still in L2
//   maths     as dequantize_row() of kernels/base in f32, then one rounding to T
//   moves     the codes read, and out written once
template <typename T, CodeForm kCodes>
__global__ void __launch_bounds__(kDequantizeThreads)
    dequantize_packed_kernel(const __grid_constant__ PackedParts parts, int n_warps) {
  using Chunk = StagedChunk<kCodes>;
  constexpr int kTiles = Chunk::kTiles;
  ptx::let_successor_begin();
  const int lane = int(threadIdx.x) % 32;
  const int warp = int(gridDim.x - 1 - blockIdx.x) * kWarps + int(threadIdx.x) / 32;
  if (warp >= n_warps) return;
  int part = 0, first_warp = 0;
  while (warp >= parts.part[part].end_warp) first_warp = parts.part[part++].end_warp;
  const PackedRows& p = parts.part[part];
  const int row_tile = (warp - first_warp) / p.n_chunks;  // among the requested rows
  const int chunk_index = (warp - first_warp) % p.n_chunks, first_tile = chunk_index * kTiles;
  const int64_t tiles_before = (p.first_row_tile + row_tile) * p.n_column_tiles + first_tile;
  const int n_tiles = int(min(p.n_column_tiles - first_tile, int64_t{kTiles}));

  const Chunk chunk{ptx::dynamic_shared() + threadIdx.x / 32 * Chunk::kBytes};
  chunk.fetch(p.codes + tiles_before * Chunk::kTileWords, n_tiles, p.scales,
              (p.first_row_tile + row_tile) * p.n_chunks + chunk_index);

  // In each tile, this lane dequantizes columns [8 octet, 8 octet + 8) of rows g and g + 8, for two
  // g.
  const int octet = lane % 8, first_column = first_tile * kTileColumns + octet * 8;
  const bool has_mins = p.mins.exist();
  float2 scales[kTiles][2], mins[kTiles][2] = {};
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const int unit = (first_column + tile * kTileColumns) >> p.unit_shift;
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const int g = 4 * u + lane / 8;
      scales[tile][u] = p.scales.at(p.first_row_tile + row_tile, unit, g);
      if (has_mins) mins[tile][u] = p.mins.at(p.first_row_tile + row_tile, unit, g);
    }
  }

  ptx::wait_for_predecessor();
  ptx::copy_async_wait<0>();
  __syncwarp();

#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const int column = first_column + tile * kTileColumns;
    if (column >= p.in_dim) break;
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const int g = 4 * u + lane / 8;
      const auto four = [&](int i) { return chunk.four(tile, g, 2 * octet + i, p.table); };
      const decltype(four(0)) codes[2] = {four(0), four(1)};
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int64_t row = int64_t{row_tile} * kTileRows + g + 8 * h - p.skipped;
        if (row < 0 || row >= p.n_rows) continue;
        const float scale = h == 0 ? scales[tile][u].x : scales[tile][u].y;
        const float min = h == 0 ? mins[tile][u].x : mins[tile][u].y;
        uint32_t pairs[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float first = __fmul_rn(codes[i / 2].centered(h, 2 * i % 4, p.bias), scale);
          float second = __fmul_rn(codes[i / 2].centered(h, 2 * i % 4 + 1, p.bias), scale);
          if (has_mins) {
            first = __fadd_rn(first, min);
            second = __fadd_rn(second, min);
          }
          pairs[i] = round_pair<T>(first, second);
        }
        uint16_t* const halves = static_cast<uint16_t*>(p.out) + row * p.in_dim + column;
        if (p.stores_words) {
          *reinterpret_cast<uint4*>(halves) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        } else {
#pragma unroll
          for (int c = 0; c < 8; ++c) {
            if (column + c < p.in_dim) halves[c] = uint16_t(pairs[c / 2] >> (16 * (c % 2)));
          }
        }
      }
    }
  }
}

// The same for float weights; a thread converts one element.
template <typename T>
__global__ void __launch_bounds__(kDequantizeThreads)
    convert_rows_kernel(T* out, MatrixView w, int64_t begin, int64_t n) {
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  const int64_t i = int64_t{blockIdx.x} * kDequantizeThreads + threadIdx.x;
  if (i < n) out[i] = from_float<T>(w.at(begin + i / w.in_dim, i % w.in_dim));
}

unsigned blocks_of(int64_t n) { return narrow<unsigned>(ceil_div(n, kDequantizeThreads)); }

// The parts of one launch.
class PartList {
 public:
  void add(const DequantizePart& part) {
    const MatrixView view = view_of(*part.w);
    const PackedLayout layout = layout_of(*part.w);
    const int64_t n = part.out.shape[0], end_row = part.begin + n;
    PackedRows p{};
    p.out = part.out.data;
    p.codes = static_cast<const uint4*>(view.data);
    p.scales = view.scales;
    p.mins = view.mins;
    p.first_row_tile = part.begin / kTileRows;
    p.n_column_tiles = layout.n_column_tiles;
    p.n_rows = n;
    p.skipped = static_cast<int>(part.begin % kTileRows);
    p.in_dim = narrow<int>(view.in_dim);
    p.n_chunks = narrow<int>(layout.n_chunks);
    p.unit_shift = unit_shift_of(layout.unit);
    p.bias = 8388608.0f + float(view.zero());
    p.table = view.table;
    p.stores_words = view.in_dim % 8 == 0 && reinterpret_cast<uintptr_t>(part.out.data) % 16 == 0;
    n_warps_ =
        narrow<int>(n_warps_ + (ceil_div(end_row, kTileRows) - p.first_row_tile) * layout.n_chunks);
    p.end_warp = n_warps_;
    parts_.part[n_parts_++] = p;
  }

  template <typename T, CodeForm kCodes>
  void run(cudaStream_t stream) const {
    if (n_parts_ == 0) return;
    launch(dequantize_packed_kernel<T, kCodes>, dim3(narrow<unsigned>(ceil_div(n_warps_, kWarps))),
           dim3(kDequantizeThreads), kWarps * StagedChunk<kCodes>::kBytes, stream, parts_,
           n_warps_);
  }

 private:
  PackedParts parts_{};
  size_t n_parts_ = 0;
  int n_warps_ = 0;
};

}  // namespace

void dequantize_rows(cudaStream_t stream, std::span<const DequantizePart> parts) {
  MINFER_CHECK(!parts.empty() && parts.size() <= kMaxDequantizeParts,
               "dequantize_rows: ", parts.size(), " parts");
  const DType half = parts[0].out.dtype;
  visit_half(half, [&]<typename T>() {
    PartList of_form[kCodeForms];
    for (const DequantizePart& part : parts) {
      const Matrix& w = *part.w;
      const int64_t n = part.out.shape[0], begin = part.begin;
      MINFER_CHECK(part.out.dtype == half && part.out.shape == (Shape{n, w.in_dim}) && begin >= 0 &&
                       begin + n <= w.out_dim,
                   "dequantize_rows: ", part.out.dtype, " ", part.out.shape, " from row ", begin,
                   " of [", w.out_dim, ", ", w.in_dim, "]");
      if (n == 0) continue;
      if (is_packed(w)) {
        of_form[size_t(code_form_of(w))].add(part);
      } else {
        launch(convert_rows_kernel<T>, dim3(blocks_of(n * w.in_dim)), dim3(kDequantizeThreads), 0,
               stream, data_of<T>(part.out), view_of(w), begin, n * w.in_dim);
      }
    }
    for_each_form(
        [&]<CodeForm kCodes>() { of_form[size_t(kCodes)].template run<T, kCodes>(stream); });
  });
}

}  // namespace minfer::cuda
