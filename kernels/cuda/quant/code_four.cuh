#pragma once

#include "kernels/cuda/quant/packed_layout.h"

namespace minfer::cuda {

// The codes of rows g and g + 8 in columns [4 four, 4 four + 4) of a tile: the words of lane (g,
// four % 4) in packed_layout.h.
template <int kBits>
struct CodeFour {
  uint32_t words[kBits / 4];

  CodeFour() = default;
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

}  // namespace minfer::cuda
