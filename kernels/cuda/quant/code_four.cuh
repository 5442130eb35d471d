#pragma once

#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/quant/matrix_view.cuh"
#include "kernels/cuda/quant/packed_layout.h"

namespace minfer::cuda {

// The word of a lane for instruction s of U4.
__device__ inline uint32_t word_of_u4(const uint4& w, int s) {
  const uint32_t words[] = {w.x, w.y, w.z, w.w};
  return words[u4_word(s)];
}

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

// The four codes of rows g and g + 8 that a word has the lower kBits of: a byte each, in the order
// of the word's bytes. high: the upper ones. Both from the lowest bit of each byte on
// (packed_layout.h).
struct WideCodes {
  uint32_t low_row, high_row;
};
template <int kBits, int kHighBits>
__device__ inline WideCodes wide_codes(uint32_t word, uint32_t high) {
  constexpr uint32_t kBytes = 0x01010101, kLower = ((1 << kBits) - 1) * kBytes;
  constexpr uint32_t kUpper = (((1 << kHighBits) - 1) << kBits) * kBytes;
  return {(word & kLower) | (high << kBits & kUpper),
          (word >> kBits & kLower) | (high << (kBits - kHighBits) & kUpper)};
}
// The lane's words of upper bits of kTiles tiles, and what wide_codes() takes of them for
// instruction s, of which a tile has four.
template <int kHighBits, int kTiles = 1>
struct HighWords {
  static constexpr int kWords = kHighBits * kTiles;
  uint32_t words[kWords > 0 ? kWords : 1] = {};

  // tiles: their upper bits, one behind the other.
  __device__ HighWords(const uint8_t* tiles, int lane) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const uint8_t* const tile = tiles + i * high_tile_bytes(kHighBits);
      if constexpr (kHighBits == 1) {
        words[i] = reinterpret_cast<const uint32_t*>(tile)[lane];
      } else if constexpr (kHighBits == 2) {
        const uint2 two = reinterpret_cast<const uint2*>(tile)[lane];
        words[2 * i] = two.x;
        words[2 * i + 1] = two.y;
      }
    }
  }
  __device__ uint32_t of(int s) const {
    if constexpr (kHighBits == 2) return words[s / 2] >> (4 * (s % 2));
    return kHighBits == 0 ? 0 : words[s / 4] >> (2 * (s % 4));
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
      words[0] = reinterpret_cast<const uint32_t*>(tile + lane)[u4_word(instruction)];
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

// The same for codes of any form, in a tile of a chunk. Those of a table, of two bits, and those
// that have upper bits, are returned as codes of U8. high: the upper bits of the tile.
template <CodeForm kCodes>
__device__ inline auto code_four(const uint8_t* codes, int tile, const uint8_t* high, int g,
                                 int four, const TableBytes& table) {
  constexpr int kBits = bits_of(kCodes), kHighBits = high_bits_of(kCodes);
  const auto wide = [&](uint32_t word) {
    const HighWords<kHighBits> words(high, 4 * g + four % 4);
    const WideCodes own = wide_codes<kBits, kHighBits>(word, words.of(four / 4));
    return CodeFour<8>(uint2{__byte_perm(own.low_row, own.high_row, 0x6420),
                             __byte_perm(own.low_row, own.high_row, 0x7531)});
  };
  if constexpr (kBits == 2) {
    const int lane = 4 * g + four % 4, s = four / 4;
    const auto* const words = reinterpret_cast<const uint32_t*>(codes + tile / 2 * kPieceBytes +
                                                                lane * 16 + tile % 2 * 8);
    return wide(words[s / 2] >> (4 * (s % 2)));
  } else {
    const auto* const first = reinterpret_cast<const uint4*>(codes) + tile * 8 * kBits;
    const CodeFour<kBits> own(first, g, four);
    if constexpr (kCodes == CodeForm::Table) {
      return CodeFour<8>(look_up(table, own.words[0]));
    } else if constexpr (kHighBits != 0) {
      return wide(own.words[0]);
    } else {
      return own;
    }
  }
}

// A chunk in shared memory: its codes, and behind them their upper bits.
template <CodeForm kCodes>
struct StagedChunk {
  static constexpr int kHighBytes = high_chunk_bytes(high_bits_of(kCodes));
  static constexpr int kCodeBytes = chunk_bytes_of(bits_of(kCodes));
  static constexpr int kBytes = kCodeBytes + kHighBytes;
  static constexpr int kTileWords = 8 * bits_of(kCodes), kTiles = kCodeBytes / 16 / kTileWords;

  uint8_t* memory;

  // Starts copying the first n_tiles of the chunk at `codes` and, with the record of `scales` at
  // index `record`, the upper bits. All lanes of a warp call it.
  __device__ void fetch(const uint4* codes, int n_tiles, const ScalePairs& scales,
                        int64_t record) const {
    const int lane = int(threadIdx.x) % 32;
    const uint32_t to = ptx::shared_address(memory) + uint32_t(lane * 16);
#pragma unroll
    for (int i = 0; i < kCodeBytes; i += kPieceBytes) {
      if (i < n_tiles * kTileWords * 16) ptx::copy_async_16(to + i, codes + lane + i / 16);
    }
    if constexpr (kHighBytes != 0) {
      const auto* const end =
          static_cast<const uint8_t*>(scales.data) + (record + 1) * scales.record_bytes;
#pragma unroll
      for (int i = 0; i < kHighBytes; i += kPieceBytes) {
        ptx::copy_async_16(to + kCodeBytes + i, end - kHighBytes + lane * 16 + i);
      }
    }
    ptx::copy_async_commit();
  }

  // code_four() of a tile.
  __device__ auto four(int tile, int g, int which, const TableBytes& table) const {
    return code_four<kCodes>(memory, tile,
                             memory + kCodeBytes + tile * high_tile_bytes(high_bits_of(kCodes)), g,
                             which, table);
  }
};

}  // namespace minfer::cuda
