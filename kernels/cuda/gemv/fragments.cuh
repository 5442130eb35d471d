#pragma once

#include "kernels/cuda/gemv/params.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/quant/code_four.cuh"

// Unpacks packed codes (quant/packed_layout.h) into operands of mma.m16n8k16, exactly.
namespace minfer::cuda {

// Compiles to one instruction.
template <uint32_t kMask, uint32_t kPattern>
__device__ inline uint32_t mask_or(uint32_t word) {
  return (word & kMask) | kPattern;
}

template <typename Pair>
__device__ inline uint32_t bits_of(Pair pair) {
  return *reinterpret_cast<const uint32_t*>(&pair);
}
template <typename Pair>
__device__ inline Pair pair_of(uint32_t bits) {
  return *reinterpret_cast<const Pair*>(&bits);
}

// How codes become mma operands of type T. An operand is kFactor times the code, or kHighFactor
// times it for codes in high nibbles, which are those of rows g + 8. If kSubtracts, the zero code
// is subtracted here; else a sum begins with minus the zero code times the sum of its activations,
// which sum_units() left in shared memory.
template <typename T, bool kSubtracts>
struct Codes;

// A code in the low bits of an f16 is a subnormal number, which tensor cores multiply exactly.
template <>
struct Codes<__half, false> {
  static constexpr float kFactor = 0x1p-24f, kHighFactor = 0x1p-20f;

  __device__ explicit Codes(int) {}
  __device__ uint32_t low_nibbles(uint32_t word) const { return word & 0x000F000F; }
  __device__ uint32_t high_nibbles(uint32_t word) const { return word & 0x00F000F0; }
  __device__ uint32_t wide(uint32_t halves) const { return halves; }
  template <int kByte>  // bytes kByte and kByte + 1
  __device__ uint32_t bytes(uint32_t word) const {
    return __byte_perm(word, 0, kByte == 0 ? 0x4140 : 0x4342);
  }
};

// For bytes: an f16 of 1024 + q has no fraction.
template <>
struct Codes<__half, true> {
  static constexpr float kFactor = 1, kHighFactor = 1;

  __half2 bias;  // 1024 + zero

  __device__ explicit Codes(int zero) : bias(__float2half2_rn(float(1024 + zero))) {}
  template <int kByte>
  __device__ uint32_t bytes(uint32_t word) const {
    const uint32_t halves = __byte_perm(word, 0x64646464, kByte == 0 ? 0x4140 : 0x4342);
    return bits_of(__hsub2(pair_of<__half2>(halves), bias));
  }
};

// A bf16 has 8 significant bits: 128 + q can hold a q of up to 7 bits, and a byte is converted
// through f32.
template <>
struct Codes<__nv_bfloat16, true> {
  static constexpr float kFactor = 1, kHighFactor = 1;

  __nv_bfloat162 low;  // 128 + zero; for nibbles and wide codes
  float byte;          // 2^23 + zero

  __device__ explicit Codes(int zero)
      : low(__float2bfloat162_rn(float(128 + zero))), byte(8388608.0f + float(zero)) {}

  __device__ uint32_t low_nibbles(uint32_t word) const {
    return bits_of(__hsub2(pair_of<__nv_bfloat162>(mask_or<0x000F000F, 0x43004300>(word)), low));
  }
  __device__ uint32_t high_nibbles(uint32_t word) const { return low_nibbles(word >> 4); }
  __device__ uint32_t wide(uint32_t halves) const {
    return bits_of(__hsub2(pair_of<__nv_bfloat162>(halves | 0x43004300), low));
  }
  template <int kByte>
  __device__ uint32_t bytes(uint32_t word) const {
    const float first = __uint_as_float(__byte_perm(word, 0x4B000000, 0x7650 + kByte)) - byte;
    const float second = __uint_as_float(__byte_perm(word, 0x4B000000, 0x7651 + kByte)) - byte;
    return bits_of(__floats2bfloat162_rn(first, second));
  }
};

template <typename T, GemvWeights kWeights, GemvScales kKind>
using CodesOf = Codes<T, subtracts<T>(kWeights, kKind)>;

// sum += 16 rows by 16 columns of codes times activations; b0 and b1 hold the lane's four
// activations.
template <typename T, bool kSubtracts>
__device__ inline void multiply_nibbles(float (&sum)[4], uint32_t word, uint32_t b0, uint32_t b1,
                                        const Codes<T, kSubtracts>& codes) {
  const uint32_t upper = word >> 8;
  ptx::mma_m16n8k16<T>(sum, codes.low_nibbles(word), codes.high_nibbles(word),
                       codes.low_nibbles(upper), codes.high_nibbles(upper), b0, b1);
}
// The same of codes whose upper rows have no factor of their own.
template <typename T, bool kSubtracts>
__device__ inline void multiply_wide(float (&sum)[4], const WideCodes& wide, uint32_t b0,
                                     uint32_t b1, const Codes<T, kSubtracts>& codes) {
  constexpr uint32_t kEven = 0x00FF00FF;
  const uint32_t low = wide.low_row, high = wide.high_row;
  ptx::mma_m16n8k16<T>(sum, codes.wide(low & kEven), codes.wide(high & kEven),
                       codes.wide(low >> 8 & kEven), codes.wide(high >> 8 & kEven), b0, b1);
}
template <typename T, bool kSubtracts>
__device__ inline void multiply_bytes(float (&sum)[4], uint32_t first, uint32_t second, uint32_t b0,
                                      uint32_t b1, const Codes<T, kSubtracts>& codes) {
  ptx::mma_m16n8k16<T>(sum, codes.template bytes<0>(first), codes.template bytes<2>(first),
                       codes.template bytes<0>(second), codes.template bytes<2>(second), b0, b1);
}

__host__ __device__ constexpr bool are_f32(GemvScales kind) {
  return kind == GemvScales::F32 || kind == GemvScales::F32Mins;
}
__host__ __device__ constexpr bool are_products(GemvScales kind) {
  return kind == GemvScales::Products || kind == GemvScales::ProductsMins;
}

// The numbers of rows g and g + 8 for a unit. `numbers`: of row g, as in a record. A byte b becomes
// 2^23 + b, and so b - 128 without a rounding.
__device__ inline float2 numbers_at(const uint8_t* numbers, int unit) {
  constexpr float kZero = 8388608.0f + 128;
  const uint2 four = *reinterpret_cast<const uint2*>(numbers + unit / 4 * (4 * kTileRows));
  const uint32_t order = 0x7650 + uint32_t(unit % 4);
  return {__uint_as_float(__byte_perm(four.x, 0x4B000000, order)) - kZero,
          __uint_as_float(__byte_perm(four.y, 0x4B000000, order)) - kZero};
}

// The scales of a chunk in its slot, as lane (g, t) reads them: those of rows g and g + 8.
template <GemvWeights kWeights, int kScales, GemvScales kKind>
struct ChunkScales {
  // log2 of the columns that a sum of activations covers
  static constexpr int kSumShift = kScales == 4 ? 4 : kScales == 2 ? 5 : kScales == 1 ? 6 : 7;

  const uint8_t* scales;  // [units][8][2], from row g on; of products, the numbers as in the record
  const uint8_t* mins;
  const uint8_t* record_end;  // of products
  float2 factor, min_factor;  // of products
  const float* sums;          // of activations: [units][tokens], from token 2 t on
  int unit_shift, sum_stride;

  // The upper bits of codes, at the end of the record. set_slot() has been called.
  __device__ const uint8_t* upper_bits() const {
    return record_end - high_chunk_bytes(high_bits_of(kWeights));
  }

  // Bytes from the scales of a row to those of the next; 0 for records, which have others.
  static constexpr int kRowBytes = are_products(kKind) ? 0 : are_f32(kKind) ? 8 : 4;

  // Points to the scales and mins of a chunk. of_row: kRowBytes * g behind where they
  // begin in the slot.
  __device__ void set_slot(const uint8_t* of_row, int g, const GemvParams& p) {
    scales = of_row;
    mins = scales + p.scale_bytes + g * (8 - kRowBytes);
    if constexpr (are_products(kKind)) {
      record_end = scales + p.scale_bytes;
      mins = scales + kTileRows * (2 + 4 * kScales);  // a chunk has four tiles
      factor = __half22float2(reinterpret_cast<const __half2*>(scales)[g]);
      scales += kTileRows * 2 + g * 8;
      if constexpr (has_mins(kKind)) {
        min_factor = __half22float2(reinterpret_cast<const __half2*>(mins)[g]);
        mins += kTileRows * 2 + g * 8;
      }
    }
  }

  __device__ float2 sums_at(int column) const {
    return *reinterpret_cast<const float2*>(sums + (column >> kSumShift) * sum_stride);
  }

  // total += sum * scale, and total_of_mins += min * (sum of activations), for the unit that holds
  // `column` of the chunk. For rows g + 8 the second term is multiplied by kUpper, which `sum`
  // already contains. Of products, both are without their factors: apply_factors().
  template <int kUpper>
  __device__ void add(float (&total)[4], float (&total_of_mins)[4], const float (&sum)[4],
                      int column) const {
    const int unit = kScales == 1 ? column >> unit_shift : column >> kSumShift;
    float2 scale;
    if constexpr (are_products(kKind)) {
      scale = numbers_at(scales, unit);
    } else if constexpr (are_f32(kKind)) {
      scale = *reinterpret_cast<const float2*>(scales + unit * 64);
    } else {
      scale = __half22float2(*reinterpret_cast<const __half2*>(scales + unit * 32));
    }
    total[0] += sum[0] * scale.x;
    total[1] += sum[1] * scale.x;
    total[2] += sum[2] * scale.y;
    total[3] += sum[3] * scale.y;
    if constexpr (has_mins(kKind)) {
      float2 min;
      if constexpr (are_products(kKind)) {
        min = numbers_at(mins, unit);
      } else {
        min = *reinterpret_cast<const float2*>(mins + unit * 64);
      }
      const float2 x = sums_at(column);
      min.y *= kUpper;
      total_of_mins[0] += x.x * min.x;
      total_of_mins[1] += x.y * min.x;
      total_of_mins[2] += x.x * min.y;
      total_of_mins[3] += x.y * min.y;
    }
  }

  // total += what a chunk of products adds up to.
  __device__ void apply_factors(float (&total)[4], const float (&of_chunk)[4],
                                const float (&of_mins)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      total[i] += of_chunk[i] * (i < 2 ? factor.x : factor.y);
      if constexpr (has_mins(kKind)) {
        total[i] += of_mins[i] * (i < 2 ? min_factor.x : min_factor.y);
      }
    }
  }
};

}  // namespace minfer::cuda
