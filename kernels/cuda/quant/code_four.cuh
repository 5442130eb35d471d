#pragma once

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

// The same of any form; codes of a table as U8.
template <CodeForm kCodes>
__device__ inline auto code_four(const uint4* tile, int g, int four, const TableBytes& table) {
  const CodeFour<bits_of(kCodes)> codes(tile, g, four);
  if constexpr (kCodes == CodeForm::Table) {
    return CodeFour<8>(look_up(table, codes.words[0]));
  } else {
    return codes;
  }
}

}  // namespace minfer::cuda
