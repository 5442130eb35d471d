#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/quant/matrix_view.cuh"

namespace minfer::cuda {
namespace {

constexpr int kPackThreads = 256;

// Reads code i of a row-major matrix, U4 or U8 as is_u4 says, and keeps its lower `bits` bits.
__device__ inline uint32_t code_at(const uint8_t* codes, bool is_u4, int bits, int64_t i) {
  const uint32_t code = is_u4 ? codes[i / 2] >> (i % 2 * 4) : codes[i];
  return code & ((1u << bits) - 1);
}

// packed[tile][lane word] = codes, in the order of packed_layout.h
//
//   packed    whole tiles of 16 rows from first_tile on, 16-byte words
//   codes     [n_rows, in_dim] U4 or U8, row-major, whose lower bits are packed
//   launch    a thread writes one 16-byte word; padding rows and columns get the zero code
//   moves     each code read and written once
__global__ void __launch_bounds__(kPackThreads)
    pack_codes_kernel(uint4* packed, const uint8_t* codes, bool is_u4, PackedLayout layout,
                      int64_t n_rows, int64_t in_dim, int64_t n_words) {
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  const int64_t word = int64_t{blockIdx.x} * kPackThreads + threadIdx.x;
  if (word >= n_words) return;
  const int bits = layout.bits, lane = int(word % 32), g = lane / 4, t = lane % 4;
  const int64_t piece = word / 32, pieces_of_row = layout.row_tile_bytes() / kPieceBytes;
  const int piece_columns = piece_columns_of(bits);
  const int64_t row0 = piece / pieces_of_row * kTileRows + g;
  const int64_t column0 = piece % pieces_of_row * piece_columns + t * 4;
  const uint32_t zero = 1u << (bits - 1);

  uint32_t words[4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // What word i holds: instructions s of the piece, pairs a, rows h and columns b of
    // packed_layout.h.
    const int of_byte = 8 / bits;
    for (int v = 0; v < 4 * of_byte; ++v) {
      const int byte = v / of_byte;
      const int s = bits == 2 ? 2 * i + v / 2 % 2 : bits == 4 ? u4_word(i) : i / 2;
      const int h = bits == 8 ? byte / 2 : v % 2;
      const int a = bits == 8 ? i % 2 : byte % 2;
      const int b = bits == 8 ? byte % 2 : byte / 2;
      const int64_t row = row0 + 8 * h, column = column0 + 16 * s + 2 * a + b;
      const bool inside = row < n_rows && column < in_dim;
      words[i] |= (inside ? code_at(codes, is_u4, bits, row * in_dim + column) : zero)
                  << (v * bits);
    }
  }
  packed[word] = make_uint4(words[0], words[1], words[2], words[3]);
}

// packed[row tile][unit][16 rows] = scales[row][group of the unit], zero in padding
//
//   packed    [n, n_units, 16] S from the first row tile on
//   scales    [n_rows, n_groups] S, also mins
//   launch    a thread writes one number
template <typename S>
__global__ void __launch_bounds__(kPackThreads)
    pack_scales_kernel(S* packed, const S* scales, PackedLayout layout, int64_t n_rows,
                       int64_t in_dim, int64_t group, int64_t n) {
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  const int64_t i = int64_t{blockIdx.x} * kPackThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t at = i / kTileRows;
  const int64_t row = at / layout.n_units * kTileRows + i % 2 * 8 + i % kTileRows / 2;
  const int64_t column = at % layout.n_units * layout.unit;  // 0 if the row has one scale
  const bool inside = row < n_rows && column < in_dim;
  packed[i] = inside ? scales[row * (in_dim / group) + column / group] : from_float<S>(0.0f);
}

unsigned blocks_of(int64_t n) { return narrow<unsigned>(ceil_div(n, kPackThreads)); }

// The codes of rows from row tile first_tile on.
void pack_tiles(cudaStream_t stream, const Matrix& packed, const Tensor& codes,
                int64_t first_tile) {
  const PackedLayout layout = layout_of(packed);
  const int64_t n_rows = codes.shape[0];
  const int64_t n_words = ceil_div(n_rows, kTileRows) * layout.row_tile_bytes() / 16;
  auto* const to = static_cast<uint8_t*>(packed.storage.view().data);
  launch(pack_codes_kernel, dim3(blocks_of(n_words)), dim3(kPackThreads), 0, stream,
         reinterpret_cast<uint4*>(to + first_tile * layout.row_tile_bytes()),
         static_cast<const uint8_t*>(codes.data), codes.dtype == DType::U4, layout, n_rows,
         packed.in_dim, n_words);
}

}  // namespace

Matrix allocate_codes(DType codes, DType scales, bool asymmetric, int64_t out_dim, int64_t in_dim,
                      int64_t group, CodeTable table) {
  MINFER_CHECK((codes == DType::U4 || codes == DType::U8) &&
                   (scales == DType::F16 || scales == DType::F32) && out_dim > 0 && in_dim > 0 &&
                   group > 0 && in_dim % group == 0 && cuda_keeps_groups(in_dim, group) &&
                   (table == CodeTable::None || (codes == DType::U4 && !asymmetric)),
               "allocate_codes: ", codes, " with scales ", scales, ", [", out_dim, ", ", in_dim,
               "] in groups of ", group);
  Matrix w;
  w.out_dim = out_dim;
  w.in_dim = in_dim;
  w.group = group;
  w.dtype = codes;
  w.table = table;
  w.code_bits = codes == DType::U4 ? 4 : 8;
  const PackedLayout layout = packed_layout(w.code_bits, out_dim, in_dim, group);
  w.storage = allocate_device(DType::U8, {layout.n_code_bytes()});
  w.scales = allocate_device(scales, {layout.n_scales()});
  if (asymmetric) w.mins = allocate_device(DType::F32, {layout.n_scales()});
  w.n_bytes = w.storage.view().n_bytes() + w.scales.view().n_bytes() +
              (asymmetric ? w.mins.view().n_bytes() : 0);
  return w;
}

Matrix allocate_products(int64_t out_dim, int64_t in_dim, const GroupFormat& format) {
  MINFER_CHECK(format.products && out_dim > 0 && in_dim > 0 && in_dim % kFactorColumns == 0 &&
                   format.bits >= 2 && format.bits <= 6 &&
                   (format.group == 16 || format.group == 32),
               "allocate_products: [", out_dim, ", ", in_dim, "] of ", format.bits,
               " bits in groups of ", format.group);
  Matrix w;
  w.out_dim = out_dim;
  w.in_dim = in_dim;
  w.group = format.group;
  w.dtype = DType::U4;
  w.table = format.table;
  w.code_bits = format.bits;
  const PackedLayout layout = packed_layout(w.code_bits, out_dim, in_dim, format.group,
                                            /*products=*/true, format.has_mins);
  w.storage = allocate_device(DType::U8, {layout.n_code_bytes()});
  w.scales = allocate_device(DType::U8, {layout.n_record_bytes()});
  w.n_bytes = w.storage.view().n_bytes() + w.scales.view().n_bytes();
  if (format.has_mins) {  // a view into the records
    const Tensor records = w.scales;
    const int64_t skipped = layout.record_scale_bytes();
    uint8_t* const first = static_cast<uint8_t*>(records.data) + skipped;
    w.mins = {{first, DType::U8, {records.n_bytes() - skipped}}, [](void*) {}};
  }
  return w;
}

void pack_codes(cudaStream_t stream, const Matrix& packed, const QuantizedMatrix& rows,
                int64_t first_row) {
  const int64_t n_rows = rows.out_dim(), in_dim = packed.in_dim;
  MINFER_CHECK(is_packed(packed) && rows.codes.dtype == packed.dtype &&
                   rows.table == packed.table && rows.in_dim() == in_dim &&
                   rows.group == packed.group && rows.scales.dtype == packed.scales.view().dtype &&
                   rows.asymmetric() == bool(packed.mins),
               "pack_codes: rows of another format");
  MINFER_CHECK(first_row >= 0 && first_row % kTileRows == 0 &&
                   first_row + n_rows <= packed.out_dim &&
                   (n_rows % kTileRows == 0 || first_row + n_rows == packed.out_dim),
               "pack_codes: rows [", first_row, ", ", first_row + n_rows, ") of ", packed.out_dim);
  if (n_rows == 0) return;
  const PackedLayout layout = layout_of(packed);
  const int64_t first_tile = first_row / kTileRows, n_tiles = ceil_div(n_rows, kTileRows);

  pack_tiles(stream, packed, rows.codes, first_tile);
  const int64_t first = first_tile * layout.n_units * kTileRows;
  const int64_t n_scales = n_tiles * layout.n_units * kTileRows;
  const auto pack = [&]<typename S>(const Tensor& to, const Tensor& from) {
    launch(pack_scales_kernel<S>, dim3(blocks_of(n_scales)), dim3(kPackThreads), 0, stream,
           static_cast<S*>(to.data) + first, static_cast<const S*>(from.data), layout, n_rows,
           in_dim, packed.group, n_scales);
  };
  if (rows.scales.dtype == DType::F16) {
    pack.operator()<__half>(packed.scales.view(), rows.scales);
  } else {
    pack.operator()<float>(packed.scales.view(), rows.scales);
  }
  if (packed.mins) pack.operator()<float>(packed.mins.view(), rows.mins);
}

void pack_product_codes(cudaStream_t stream, const Matrix& packed, const Tensor& codes) {
  MINFER_CHECK(is_packed(packed) && packed.scales.view().dtype == DType::U8 &&
                   codes.dtype == (packed.code_bits > 4 ? DType::U8 : DType::U4) &&
                   codes.shape == (Shape{packed.out_dim, packed.in_dim}),
               "pack_product_codes: ", codes.dtype, " ", codes.shape);
  pack_tiles(stream, packed, codes, 0);
}

}  // namespace minfer::cuda
