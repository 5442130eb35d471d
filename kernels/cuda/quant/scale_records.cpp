// The scales of GGUF's blocks that are products, in the layout of a card.

#include <algorithm>
#include <array>

#include "kernels/base/math.h"
#include "kernels/base/parallel.h"
#include "kernels/base/quant_codec.h"
#include "kernels/base/usable_cores.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/quant/packed_layout.h"

namespace minfer::cuda {
namespace {

void put_factor(std::vector<uint8_t>& to, int64_t byte, float factor) {
  const uint16_t bits = to_f16(factor).bits;
  to[size_t(byte)] = uint8_t(bits);
  to[size_t(byte) + 1] = uint8_t(bits >> 8);
}
void put_number(std::vector<uint8_t>& to, int64_t byte, int8_t number) {
  to[size_t(byte)] = uint8_t(number + 128);
}

// Calls f(row, block of the row, its scales, its codes) from several threads, each with rows of its
// own.
template <typename F>
void for_each_block(const Tensor& host, F f) {
  constexpr int64_t kRowsOfPiece = 64;
  static_assert(kRowsOfPiece % kTileRows == 0, "rows g and g + 8 share bytes of upper bits");
  const DTypeInfo& type = info(host.dtype);
  MINFER_CHECK(group_format(host.dtype).products && type.block_elements == kFactorColumns,
               "products of ", host.dtype);
  const int64_t n_rows = host.shape[0];
  parallel_for(usable_cores(), ceil_div(n_rows, kRowsOfPiece), [&](int64_t piece) {
    std::vector<uint8_t> codes(size_t(type.block_elements));
    BlockScales scales;
    const int64_t begin = piece * kRowsOfPiece, end = std::min(n_rows, begin + kRowsOfPiece);
    for (int64_t row = begin; row < end; ++row) {
      const auto* block = static_cast<const std::byte*>(host.rows(row, 1).data);
      for (int64_t b = 0; b < host.shape[1] / kFactorColumns; ++b, block += type.block_bytes) {
        unpack_block(codes.data(), scales, block, host.dtype);
        f(row, b, scales, codes.data());
      }
    }
  });
}

// Where the upper bits of a tile's row go, by column: high_place() from the tile's first byte on.
using HighPlaces = std::array<PackedLayout::Place, kTileColumns>;
std::vector<HighPlaces> high_places_of(const PackedLayout& layout) {
  std::vector<HighPlaces> places(kTileRows);
  if (layout.high_bits == 0) return places;
  const int64_t begin = layout.record_bytes() - high_chunk_bytes(layout.high_bits);
  for (size_t row = 0; row < kTileRows; ++row) {
    for (size_t column = 0; column < kTileColumns; ++column) {
      places[row][column] = layout.high_place(int64_t(row), int64_t(column));
      places[row][column].byte -= begin;
    }
  }
  return places;
}

}  // namespace

std::vector<uint8_t> packed_records(const Tensor& host) {
  const GroupFormat format = group_format(host.dtype);
  const PackedLayout layout = packed_layout(format.bits, host.shape[0], host.shape[1], format.group,
                                            /*products=*/true, format.has_mins);
  MINFER_CHECK(layout.chunk_columns() == kFactorColumns, "a record for each factor");
  std::vector<uint8_t> records(size_t(layout.n_record_bytes()));
  const std::vector<HighPlaces> high_places = high_places_of(layout);
  for_each_block(host, [&](int64_t row, int64_t block, const BlockScales& scales,
                           const uint8_t* codes) {
    const int64_t in_tile = row % 8 * 2 + row / 8 % 2;
    const int64_t record = row / kTileRows * layout.n_chunks + block;
    const int64_t at = record * layout.record_bytes(), mins_at = at + layout.record_scale_bytes();
    put_factor(records, at + 2 * in_tile, scales.factor);
    if (format.has_mins) put_factor(records, mins_at + 2 * in_tile, scales.min_factor);
    for (int unit = 0; unit < layout.units_of_chunk(); ++unit) {
      const int64_t byte = PackedLayout::number_place(row, unit);
      put_number(records, at + byte, scales.scales[unit]);
      if (format.has_mins) put_number(records, mins_at + byte, scales.mins[unit]);
    }
    if (layout.high_bits == 0) return;
    const HighPlaces& places = high_places[size_t(row % kTileRows)];
    uint8_t* upper =
        records.data() + at + layout.record_bytes() - high_chunk_bytes(layout.high_bits);
    for (int64_t i = 0; i < kFactorColumns; i += kTileColumns) {
      for (size_t c = 0; c < kTileColumns; ++c) {
        upper[places[c].byte] |= uint8_t(codes[i + int64_t(c)] >> layout.bits << places[c].shift);
      }
      upper += high_tile_bytes(layout.high_bits);
    }
  });
  return records;
}

}  // namespace minfer::cuda
