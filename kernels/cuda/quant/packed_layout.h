#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define MINFER_HOST_DEVICE __host__ __device__
#else
#define MINFER_HOST_DEVICE
#endif

// How quantized codes lie on a card: tiles of 16 rows by 64 columns in the order of the fragments
// of mma.m16n8k16, so that the 16-byte words that a lane loads are its own operands.
//
//   tile    256 bytes of U2, 512 of U4, 1024 of U8. Those of the same 16 rows follow one another
//           along the columns; rows are padded to 16 and columns to 64
//   piece   512 bytes, 16 of each lane: two tiles of U2, of which a row has an even number, one of
//           U4, half of one of U8
//   lane    (g, t) = (lane / 4, lane % 4) owns rows g and g + 8 and, in each 16 columns, the four
//           from 4t on: each of the tile's four mma instructions covers 16 adjacent columns
//   U2      word s / 2 of the lane's 8 bytes of a tile: byte 2 b + a holds row g + 8 h, column
//           16 s + 4 t + 2 a + b, in the two bits from 4 (s % 2) + 2 h on
//   U4      word u4_word(s) is instruction s: byte 2 b + a holds that code in the four bits from
//           4 h on
//   U8      pieces s / 2; word 2 (s % 2) + a: byte 2 h + b is that code
//   chunk   four tiles, or two of U8; what a warp multiplies in one step
//   scales  one for each row and unit. A unit has as many columns as the largest power of two that
//           divides the group, at most a chunk; a group of several units repeats its scale. Order:
//           [row tile][unit][row % 8][row / 8 % 2]. Columns are padded to whole chunks, with scales
//           of 0. If the group is the whole row, the row has one scale. Mins are alike, F32
//   products  scales that are whole numbers times a factor of 256 columns (GroupFormat) are records
//           [row tile][chunk] of bytes: the factors F16 [row % 8][row / 8 % 2], then the numbers +
//           128 of the chunk's units, [unit / 4][row % 8][row / 8 % 2][unit % 4]. Mins are alike,
//           behind the scales of the same record
//   U3, U5, U6  codes of products, as U2 is: the lower two bits of U3 are U2, the lower four of the
//           others U4, and the upper ones end the record of their chunk: for each tile 32 lanes of
//           4 bytes each bit. Byte 2 b + a of a lane holds those of columns 16 s + 4 t + 2 a + b:
//           one bit of row g + 8 h at 2 s + h; two, in the word of s / 2, at 4 (s % 2) + 2 h
namespace minfer::cuda {

constexpr int kTileRows = 16, kTileColumns = 64, kPieceBytes = 512;

// What the words of a packed matrix hold. Table: codes of four bits that are indices of one.
enum class CodeForm { U2, U3, U4, U5, U6, U8, Table };
constexpr int kCodeForms = 7;
template <typename F>
void for_each_form(F f) {
  f.template operator()<CodeForm::U2>();
  f.template operator()<CodeForm::U3>();
  f.template operator()<CodeForm::U4>();
  f.template operator()<CodeForm::U5>();
  f.template operator()<CodeForm::U6>();
  f.template operator()<CodeForm::U8>();
  f.template operator()<CodeForm::Table>();
}
// The bits of a code in the tiles, and those in the records.
MINFER_HOST_DEVICE constexpr int bits_of(CodeForm form) {
  return form == CodeForm::U2 || form == CodeForm::U3 ? 2 : form == CodeForm::U8 ? 8 : 4;
}
MINFER_HOST_DEVICE constexpr int high_bits_of(CodeForm form) {
  return form == CodeForm::U3 || form == CodeForm::U5 ? 1 : form == CodeForm::U6 ? 2 : 0;
}
// The word of a lane that instruction s of U4 takes: 0, 2, 1 and 3; and the instruction of a word.
// So words 0 and 2 are the first 32 columns: rows of the A operand of mma.m16n8k32 that takes all
// four words as they lie (decode/persistent/step_words.cuh).
MINFER_HOST_DEVICE constexpr int u4_word(int s) { return s % 2 * 2 + s / 2; }
static_assert(u4_word(u4_word(1)) == 1 && u4_word(u4_word(2)) == 2 && u4_word(3) == 3);
// The code of 0 where there are no minimums.
MINFER_HOST_DEVICE constexpr int zero_code_of(CodeForm form) {
  return form == CodeForm::Table ? 128 : 1 << (bits_of(form) + high_bits_of(form) - 1);
}
// What the products of GGUF's types are, by the form of their codes.
MINFER_HOST_DEVICE constexpr bool products_have_mins(CodeForm form) {
  return form == CodeForm::U2 || form == CodeForm::U4 || form == CodeForm::U5;
}
MINFER_HOST_DEVICE constexpr int unit_of_products(CodeForm form) {
  return form == CodeForm::U2 || form == CodeForm::U3 || form == CodeForm::U6 ? 16 : 32;
}
// Of a piece, and of a chunk, of codes with so many bits in the tiles.
MINFER_HOST_DEVICE constexpr int piece_columns_of(int bits) { return 256 / bits; }
MINFER_HOST_DEVICE constexpr int chunk_columns_of(int bits) { return bits == 8 ? 128 : 256; }
MINFER_HOST_DEVICE constexpr int chunk_bytes_of(int bits) {
  return chunk_columns_of(bits) * kTileRows / 8 * bits;
}
// Of a chunk, or of a tile, of codes with so many bits in the records.
MINFER_HOST_DEVICE constexpr int high_chunk_bytes(int high_bits) { return 512 * high_bits; }
MINFER_HOST_DEVICE constexpr int high_tile_bytes(int high_bits) { return 128 * high_bits; }

// The sixteen entries of a table (CodeTable) + 128, a byte each: so a code that is an index becomes
// a code of U8, whose zero code is 128.
struct TableBytes {
  uint32_t words[4] = {};

  MINFER_HOST_DEVICE int at(int code) const {
    return int(words[code / 4] >> (8 * (code % 4)) & 0xFF);
  }
};

struct PackedLayout {
  int bits = 4;       // of a code in the tiles
  int high_bits = 0;  // of a code in the records
  int unit = 0;       // columns of a scale; 0: the whole row
  int64_t n_row_tiles = 0, n_column_tiles = 0, n_chunks = 0;
  int64_t n_units = 0;  // per row, padding included
  bool products = false, product_mins = false;

  MINFER_HOST_DEVICE int tile_bytes() const { return 128 * bits; }
  MINFER_HOST_DEVICE int chunk_columns() const { return chunk_columns_of(bits); }
  MINFER_HOST_DEVICE int chunk_bytes() const { return chunk_bytes_of(bits); }
  MINFER_HOST_DEVICE int64_t row_tile_bytes() const { return n_column_tiles * tile_bytes(); }
  MINFER_HOST_DEVICE int64_t n_code_bytes() const { return n_row_tiles * row_tile_bytes(); }
  MINFER_HOST_DEVICE int64_t n_scales() const { return n_row_tiles * n_units * kTileRows; }
  // Of products.
  MINFER_HOST_DEVICE int units_of_chunk() const { return chunk_columns() / unit; }
  MINFER_HOST_DEVICE int record_scale_bytes() const { return kTileRows * (2 + units_of_chunk()); }
  MINFER_HOST_DEVICE int record_bytes() const {
    return record_scale_bytes() * (product_mins ? 2 : 1) + high_chunk_bytes(high_bits);
  }
  MINFER_HOST_DEVICE int64_t n_record_bytes() const {
    return n_row_tiles * n_chunks * record_bytes();
  }

  // The byte of a number in a record's scales or mins.
  MINFER_HOST_DEVICE static int number_place(int64_t row, int unit_of_chunk) {
    const int in_tile = int(row % 8 * 2 + row / 8 % 2);
    return kTileRows * (2 + unit_of_chunk / 4 * 4) + in_tile * 4 + unit_of_chunk % 4;
  }

  // Where the upper bits of a code are in the records.
  struct Place {
    int64_t byte;
    int shift;
  };
  MINFER_HOST_DEVICE Place high_place(int64_t row, int64_t column) const {
    const int64_t record = row / kTileRows * n_chunks + column / chunk_columns();
    const int in_chunk = int(column % chunk_columns()), c = in_chunk % kTileColumns;
    const int s = c / 16, t = c / 4 % 4, a = c / 2 % 2, b = c % 2;
    const int lane = int(row % 8) * 4 + t, h = int(row / 8 % 2);
    const int in_lane = (high_bits == 2 ? s / 2 * 4 : 0) + 2 * b + a;
    const int at = in_chunk / kTileColumns * high_tile_bytes(high_bits) + lane * 4 * high_bits;
    return {(record + 1) * record_bytes() - high_chunk_bytes(high_bits) + at + in_lane,
            high_bits == 2 ? 4 * (s % 2) + 2 * h : 2 * s + h};
  }

  // The index of the scale of an element.
  MINFER_HOST_DEVICE int64_t scale_index(int64_t row, int64_t column) const {
    const int64_t at = row / kTileRows * n_units + (unit == 0 ? 0 : column / unit);
    return at * kTileRows + row % 8 * 2 + row / 8 % 2;
  }

  // The byte that holds a code, or its lower bits, and the shift of the code in it.
  MINFER_HOST_DEVICE Place place(int64_t row, int64_t column) const {
    const int64_t tile = row / kTileRows * n_column_tiles + column / kTileColumns;
    const int c = int(column % kTileColumns);
    const int s = c / 16, t = c / 4 % 4, a = c / 2 % 2, b = c % 2;
    const int lane = int(row % 8) * 4 + t, h = int(row / 8 % 2);
    const int64_t piece = bits == 2 ? tile / 2 : bits == 4 ? tile : tile * 2 + s / 2;
    const int64_t of_lane = piece * kPieceBytes + lane * 16;
    if (bits == 2) return {of_lane + tile % 2 * 8 + s / 2 * 4 + 2 * b + a, 4 * (s % 2) + 2 * h};
    if (bits == 4) return {of_lane + u4_word(s) * 4 + 2 * b + a, 4 * h};
    return {of_lane + (s % 2 * 2 + a) * 4 + 2 * h + b, 0};
  }
};

// bits: 4, 8, or of products 2 to 6.
MINFER_HOST_DEVICE inline PackedLayout packed_layout(int bits, int64_t out_dim, int64_t in_dim,
                                                     int64_t group, bool products = false,
                                                     bool has_mins = false) {
  PackedLayout layout;
  layout.bits = bits <= 3 ? 2 : bits == 8 ? 8 : 4;
  layout.high_bits = bits - layout.bits;
  layout.products = products;
  layout.product_mins = products && has_mins;
  layout.n_row_tiles = (out_dim + kTileRows - 1) / kTileRows;
  layout.n_column_tiles = (in_dim + kTileColumns - 1) / kTileColumns;
  const int chunk_columns = layout.chunk_columns();
  layout.n_chunks = (in_dim + chunk_columns - 1) / chunk_columns;
  if (group == in_dim) {
    layout.n_units = 1;
  } else {
    const int64_t power = group & -group;
    layout.unit = power < chunk_columns ? int(power) : chunk_columns;
    layout.n_units = layout.n_chunks * (chunk_columns / layout.unit);
  }
  return layout;
}

}  // namespace minfer::cuda
