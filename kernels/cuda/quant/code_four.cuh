#pragma once

#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/quant/matrix_view.cuh"
#include "kernels/cuda/quant/packed_layout.h"

namespace minfer::cuda {

// The entries of the four codes in the lower half of a word, a byte each. A byte permutation reads
// three bits of each code, and then bit 3 chooses between the halves of the table.
__device__ inline uint32_t look_up_four(const TableBytes& table, uint32_t codes) {
  const uint32_t index = codes & 0x7777, upper = (codes & 0x8888) >> 1;
  return __byte_perm(__byte_perm(table.words[0], table.words[1], index),
                     __byte_perm(table.words[2], table.words[3], index), 0x3210 | upper);
}
// A word of U4 as the two words of U8 with the same rows and columns (packed_layout.h).
__device__ inline uint2 look_up(const TableBytes& table, uint32_t word) {
  const uint32_t first = look_up_four(table, word), second = look_up_four(table, word >> 16);
  return {__byte_perm(first, second, 0x5140), __byte_perm(first, second, 0x7362)};
}

// The four codes of U4, U5 or U6 of rows g and g + 8 that a word of U4 has the lower bits of: a
// byte each, in the order of that word's bytes. high: the upper ones, from the lowest bit of each
// byte on (packed_layout.h).
struct WideCodes {
  uint32_t low_row, high_row;
};
template <int kHighBits>
__device__ inline WideCodes wide_codes(uint32_t word, uint32_t high) {
  constexpr uint32_t kUpper = kHighBits == 0 ? 0 : kHighBits == 1 ? 0x10101010 : 0x30303030;
  return {(word & 0x0F0F0F0F) | (high << 4 & kUpper),
          (word >> 4 & 0x0F0F0F0F) | (high << (4 - kHighBits) & kUpper)};
}
// The lane's words of upper bits of a tile, and what wide_codes() takes of them for instruction s.
template <int kHighBits>
struct HighWords {
  uint32_t words[kHighBits > 0 ? kHighBits : 1] = {};

  // tile: the upper bits of a tile.
  __device__ HighWords(const uint8_t* tile, int lane) {
    if constexpr (kHighBits == 0) return;
    if constexpr (kHighBits == 1) {
      words[0] = reinterpret_cast<const uint32_t*>(tile)[lane];
    } else if constexpr (kHighBits == 2) {
      const uint2 two = reinterpret_cast<const uint2*>(tile)[lane];
      words[0] = two.x;
      words[1] = two.y;
    }
  }
  __device__ uint32_t of(int s) const {
    if constexpr (kHighBits == 2) return words[s / 2] >> (4 * (s % 2));
    return words[0] >> (2 * s);
  }
};

// The codes of rows g and g + 8 in columns [4 four, 4 four + 4) of a tile: the words of lane (g,
// four % 4) in packed_layout.h.
template <int kBits>
struct CodeFour {
  uint32_t words[kBits / 4];

  CodeFour() = default;
  __device__ explicit CodeFour(uint2 bytes) {
    static_assert(kBits == 8);
    words[0] = bytes.x;
    words[1] = bytes.y;
  }
  __device__ CodeFour(const uint4* tile, int g, int four) {
    const int instruction = four / 4, lane = 4 * g + four % 4;
    if constexpr (kBits == 4) {
      words[0] = reinterpret_cast<const uint32_t*>(tile + lane)[instruction];
    } else {
      const uint4* const half = tile + instruction / 2 * 32;
      const uint2 two = reinterpret_cast<const uint2*>(half + lane)[instruction % 2];
      words[0] = two.x;
      words[1] = two.y;
    }
  }

  // The code minus the zero code, of row g + 8 h and column 4 four + c. bias: 2^23 + the zero code.
  // Floats of that size differ by 1, so the result is exact.
  __device__ float centered(int h, int c, float bias) const {
    const int a = c / 2, b = c % 2;
    const uint32_t bytes = kBits == 4 ? words[0] >> (4 * h) & 0x0F0F0F0F : words[a % (kBits / 4)];
    const uint32_t byte = kBits == 4 ? 2u * b + a : 2u * h + b;
    return __uint_as_float(__byte_perm(bytes, 0x4B000000, 0x7650 + byte)) - bias;
  }

  // The codes of row g + 8 h minus 128, in two's complement, the first column in the lowest byte.
  __device__ uint32_t less_128(int h) const {
    static_assert(kBits == 8);
    return __byte_perm(words[0], words[1], h == 0 ? 0x5410 : 0x7632) ^ 0x80808080u;
  }
};

// The same for codes of any form. Those of a table, and those that have upper bits, are returned as
// codes of U8. high: the upper bits of the tile.
template <CodeForm kCodes>
__device__ inline auto code_four(const uint4* tile, const uint8_t* high, int g, int four,
                                 const TableBytes& table) {
  const CodeFour<bits_of(kCodes)> codes(tile, g, four);
  constexpr int kHighBits = high_bits_of(kCodes);
  if constexpr (kCodes == CodeForm::Table) {
    return CodeFour<8>(look_up(table, codes.words[0]));
  } else if constexpr (kHighBits != 0) {
    const HighWords<kHighBits> words(high, 4 * g + four % 4);
    const WideCodes wide = wide_codes<kHighBits>(codes.words[0], words.of(four / 4));
    return CodeFour<8>(uint2{__byte_perm(wide.low_row, wide.high_row, 0x6420),
                             __byte_perm(wide.low_row, wide.high_row, 0x7531)});
  } else {
    return codes;
  }
}

// A chunk in shared memory: its codes, and behind them their upper bits.
template <CodeForm kCodes>
struct StagedChunk {
  static constexpr int kHighBytes = high_chunk_bytes(high_bits_of(kCodes));
  static constexpr int kBytes = kChunkBytes + kHighBytes;
  static constexpr int kTileWords = 8 * bits_of(kCodes), kTiles = kChunkBytes / 16 / kTileWords;

  uint8_t* memory;

  // Starts copying the first n_tiles of the chunk at `codes` and, with the record of `scales` at
  // index `record`, the upper bits. All lanes of a warp call it.
  __device__ void fetch(const uint4* codes, int n_tiles, const ScalePairs& scales,
                        int64_t record) const {
    const int lane = int(threadIdx.x) % 32;
    const uint32_t to = ptx::shared_address(memory) + uint32_t(lane * 16);
#pragma unroll
    for (int i = 0; i < kChunkBytes; i += 512) {
      if (i < n_tiles * kTileWords * 16) ptx::copy_async_16(to + i, codes + lane + i / 16);
    }
    if constexpr (kHighBytes != 0) {
      const auto* const end =
          static_cast<const uint8_t*>(scales.data) + (record + 1) * scales.record_bytes;
#pragma unroll
      for (int i = 0; i < kHighBytes; i += 512) {
        ptx::copy_async_16(to + kChunkBytes + i, end - kHighBytes + lane * 16 + i);
      }
    }
    ptx::copy_async_commit();
  }

  // code_four() of a tile.
  __device__ auto four(int tile, int g, int which, const TableBytes& table) const {
    return code_four<kCodes>(reinterpret_cast<const uint4*>(memory) + tile * kTileWords,
                             memory + kChunkBytes + tile * high_tile_bytes(high_bits_of(kCodes)), g,
                             which, table);
  }
};

}  // namespace minfer::cuda
