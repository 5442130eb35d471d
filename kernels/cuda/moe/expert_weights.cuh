#pragma once

#include <type_traits>

#include "kernels/cuda/gemv/fragments.cuh"
#include "kernels/cuda/moe/expert_gemm.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/quant/code_four.cuh"

// The weights of experts in a stage of shared memory, and how they become operands of the tensor
// cores.
namespace minfer::cuda {

// Shared memory of the kernel: a ring of stages, each with 64 columns of the rows of x and of the
// weights, then where the tiles of each expert begin.
template <ExpertFormat kFormat>
struct ExpertStage {
  static constexpr GemvWeights kWeights = weights_of(kFormat);
  static constexpr int kHighBits = high_bits_of(kWeights);
  // Bytes of one row tile (16 rows by 64 columns) of weights, and behind it of its scales, its mins
  // and its upper bits. Products have there two factors and four numbers of each row, as they lie
  // in a record.
  static constexpr bool kIsFloat = kWeights == GemvWeights::Float;
  static constexpr int kBits = kIsFloat ? 16 : bits_of(form_of(kWeights));
  static constexpr int kWordBytes = kTileRows * kTileColumns / 8 * kBits;
  // Where a lane's words for a step are in a row tile of the matrix. A piece of U2 has those of
  // two.
  __host__ __device__ static constexpr int64_t words_at(int step) {
    return kBits == 2 ? step / 2 * kPieceBytes + step % 2 * 8 : int64_t{step} * kWordBytes;
  }
  static constexpr int kScaleBytes = kIsFloat                    ? 0
                                     : are_products(kFormat)     ? kTileRows * 6
                                     : has_plain_scales(kFormat) ? 128
                                                                 : 256;
  static constexpr int kUnit = are_products(kFormat) ? unit_of_products(form_of(kWeights)) : 0;
  static constexpr bool kMayHaveMins =
      are_products(kFormat) ? products_have_mins(form_of(kWeights))
                            : !has_plain_scales(kFormat) && kFormat != ExpertFormat::TablePowers;
  static constexpr int kMinBytes = kMayHaveMins ? kScaleBytes : 0;
  static constexpr int kMinsAt = kWordBytes + kScaleBytes, kHighAt = kMinsAt + kMinBytes;
  static constexpr int kHighBytes = high_tile_bytes(kHighBits);
  static constexpr int kTileBytes = kHighAt + kHighBytes;
  // Rows of x are 192 bytes apart, 128 of them used: 16-byte reads of 2 rows by 4 lanes have no
  // bank conflicts.
  static constexpr int kRowBytes = 192, kXBytes = kExpertRows * kRowBytes;
  static constexpr int kBytes = kXBytes + kExpertWarps * 2 * kTileBytes;
};

// Known when all but U4 and U8 are compiled: branches in the loop over k cost much.
template <ExpertFormat kFormat>
__device__ inline bool scales_are_f32(const ExpertGemmParams& p) {
  if (kFormat == ExpertFormat::TablePowers) return true;
  return !has_plain_scales(kFormat) && p.scales_are_f32;
}
template <ExpertFormat kFormat>
__device__ inline bool has_mins(const ExpertGemmParams& p) {
  return ExpertStage<kFormat>::kMayHaveMins && (are_products(kFormat) || p.has_mins);
}

// A lane's A fragments of one row tile and 32 columns: for instruction i, rows g and g + 8 of its
// columns 4 t to 4 t + 3 (of floats: 8 t + 4 i to 8 t + 4 i + 3).
using Fragments = uint32_t[2][4];

__device__ inline uint32_t pack_pair(float low, float high, __half) {
  return bits_of(__floats2half2_rn(low, high));
}
__device__ inline uint32_t pack_pair(float low, float high, __nv_bfloat16) {
  return bits_of(__floats2bfloat162_rn(low, high));
}

// Scale and minimum of one row for some columns.
struct RowScale {
  float scale, min;
};

// The values of two codes, which are bytes of a word, rounded to T once.
template <typename T, bool kMins>
__device__ inline uint32_t dequantize_pair(uint32_t word, int first_byte, int second_byte,
                                           int zero_code, RowScale s) {
  const auto value_of = [&](int byte) {
    // 2^23 + code is exact, and so is what is left without 2^23 + zero.
    const uint32_t bits = __byte_perm(word, 0x4B000000, 0x7650 + uint32_t(byte));
    const float centered = __uint_as_float(bits) - (8388608.0f + float(zero_code));
    return kMins ? fmaf(centered, s.scale, s.min) : centered * s.scale;
  };
  return pack_pair(value_of(first_byte), value_of(second_byte), T{});
}

// A power of two in F32, not negative, as a product of two F16 numbers, the first of which times an
// entry of a table is exact, or infinite as the value then is. Of two rows.
struct PowerPair {
  __half2 first, second;
};
__device__ inline PowerPair powers_of(float2 power) {
  constexpr int kBias = 127, kLeast = -14, kMost = 15;  // exponents of normal F16 numbers
  float of_first[2], of_second[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int exponent = int(__float_as_uint(i == 0 ? power.x : power.y) >> 23) - kBias;
    const int bounded = min(max(exponent, kLeast), kMost);
    of_first[i] = __uint_as_float(uint32_t(bounded + kBias) << 23);
    of_second[i] = __uint_as_float(uint32_t(min(exponent - bounded, kMost) + kBias) << 23);
  }
  return {__floats2half2_rn(of_first[0], of_first[1]),
          __floats2half2_rn(of_second[0], of_second[1])};
}

// The weights of one row tile in a stage, as a lane reads them. Plain formats and powers with F16
// activations are read all at once, since each read that a group of wgmma waits for costs the
// latency of shared memory.
template <typename T, ExpertFormat kFormat>
struct StagedWeights {
  using Stage = ExpertStage<kFormat>;
  static constexpr GemvWeights kWeights = weights_of(kFormat);
  static constexpr bool kHasPowers = kFormat == ExpertFormat::TablePowers;
  static constexpr bool kReadsAll =
      (has_plain_scales(kFormat) || kHasPowers) && std::is_same_v<T, __half>;
  const uint8_t* tile;
  int step;
  uint4 all_words[kReadsAll ? Stage::kWordBytes / kPieceBytes : 1];
  __half2 all_scales[kReadsAll ? 4 : 1];
  __half2 second_powers[kReadsAll && kHasPowers ? 4 : 1];

  __device__ StagedWeights(const uint8_t* tile, int step, const ExpertGemmParams& p)
      : tile(tile), step(step) {
    if constexpr (kReadsAll) {
#pragma unroll
      for (int i = 0; i < Stage::kWordBytes / kPieceBytes; ++i) all_words[i] = read_words(i);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (kHasPowers) {
          const auto* const pairs = reinterpret_cast<const float2*>(tile + Stage::kWordBytes);
          const PowerPair powers = powers_of(pairs[pair_of_scales(i, p)]);
          all_scales[i] = powers.first;
          second_powers[i] = powers.second;
        } else {
          half_scales_of(all_scales[i], i, p);
        }
      }
    }
  }

  __device__ uint4 read_words(int piece) const {
    if constexpr (Stage::kBits == 2) {  // the lane's half of those of a piece
      const uint2 two = reinterpret_cast<const uint2*>(tile)[threadIdx.x % 32];
      return {two.x, two.y, 0, 0};
    }
    return *reinterpret_cast<const uint4*>(tile + piece * kPieceBytes + threadIdx.x % 32 * 16);
  }
  __device__ uint4 words(int piece) const {
    if constexpr (kReadsAll) return all_words[piece];
    return read_words(piece);
  }
  // Where the scales of rows g and g + 8 are, for instruction `at` of the four of a tile.
  __device__ static int pair_of_scales(int at, const ExpertGemmParams& p) {
    return (at * 16 >> p.unit_shift) * 8 + int(threadIdx.x) % 32 / 4;
  }
  // The product of rows g and g + 8 for instruction `at`. from: the first factor.
  __device__ float2 products_at(const uint8_t* from, int at) const {
    const int g = int(threadIdx.x) % 32 / 4;
    const int unit = Stage::kUnit == 16 ? at : step % 2 * 2 + at / 2;  // of the four
    const float2 factor = __half22float2(reinterpret_cast<const __half2*>(from)[g]);
    const float2 number = numbers_at(from + kTileRows * 2 + g * 8, unit);
    return {factor.x * number.x, factor.y * number.y};
  }
  template <bool kMins>
  __device__ void scales_of(RowScale (&of)[2], int at, const ExpertGemmParams& p) const {
    const uint8_t* const scales = tile + Stage::kWordBytes;
    const int pair = pair_of_scales(at, p);
    float2 scale, min{};
    if constexpr (are_products(kFormat)) {
      scale = products_at(scales, at);
      if constexpr (kMins) min = products_at(tile + Stage::kMinsAt, at);
    } else if (scales_are_f32<kFormat>(p)) {
      scale = *reinterpret_cast<const float2*>(scales + pair * 8);
    } else {
      scale = __half22float2(*reinterpret_cast<const __half2*>(scales + pair * 4));
    }
    if constexpr (kMins && !are_products(kFormat)) {
      min = *reinterpret_cast<const float2*>(tile + Stage::kMinsAt + pair * 8);
    }
    of[0] = {scale.x, min.x};
    of[1] = {scale.y, min.y};
  }

  // The word of U2 or U4 for instruction i of a half, whose codes begin at its lowest bit, and the
  // two words of U8; codes of a table as U8.
  __device__ static uint32_t word_of(const uint4& w, int half, int i) {
    if constexpr (Stage::kBits == 2) return (half == 0 ? w.x : w.y) >> (4 * i);
    return word_of_u4(w, 2 * half + i);
  }
  __device__ static uint2 bytes_of(const uint4& w, int half, int i, const ExpertGemmParams& p) {
    if constexpr (kWeights == GemvWeights::Table) return look_up(p.table, word_of(w, half, i));
    return i == 0 ? uint2{w.x, w.y} : uint2{w.z, w.w};
  }

  // The scales of rows g and g + 8 for instruction `at`, and whether they are F16 numbers.
  __device__ bool half_scales_of(__half2& scales, int at, const ExpertGemmParams& p) const {
    const uint8_t* const from = tile + Stage::kWordBytes;
    const int pair = pair_of_scales(at, p);
    if (!scales_are_f32<kFormat>(p)) {
      scales = *reinterpret_cast<const __half2*>(from + pair * 4);
      return true;
    }
    const float2 wide = *reinterpret_cast<const float2*>(from + pair * 8);
    scales = __floats2half2_rn(wide.x, wide.y);
    const float2 back = __half22float2(scales);
    return back.x == wide.x && back.y == wide.y;
  }

  // Codes with such scales, of a half's two instructions, and without minimums, two at a time:
  // their products are exact in f32, so that one rounding to half gives the same.
  __device__ void load_halves(Fragments& a, const uint4& w, int half, const __half2 (&scales)[2],
                              const ExpertGemmParams& p) const {
    constexpr bool kNibbles = kWeights == GemvWeights::U4;
    const __half2 zero = __float2half2_rn(1024.0f + (kNibbles ? 8 : 128));
    const __half2 high_zero = __float2half2_rn(64.0f + 8), sixteenth = __float2half2_rn(0.0625f);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const __half2 of_row[] = {__low2half2(scales[i]), __high2half2(scales[i])};
      [[maybe_unused]] __half2 second_of_row[2];
      if constexpr (kReadsAll && kHasPowers) {
        second_of_row[0] = __low2half2(second_powers[2 * half + i]);
        second_of_row[1] = __high2half2(second_powers[2 * half + i]);
      }
#pragma unroll
      for (int r = 0; r < 4; ++r) {  // as in load()
        __half2 centered;
        if constexpr (kNibbles) {
          const uint32_t word = word_of(w, half, i) >> (8 * (r / 2));
          if (r % 2 == 0) {  // 1024 + code
            const uint32_t codes = ptx::mask_or<0x000F000F>(word, 0x64006400);
            centered = __hsub2(pair_of<__half2>(codes), zero);
          } else {  // 1024 + 16 code
            const uint32_t codes = ptx::mask_or<0x00F000F0>(word, 0x64006400);
            centered = __hsub2(__hmul2(pair_of<__half2>(codes), sixteenth), high_zero);
          }
        } else {
          const uint2 bytes = bytes_of(w, half, i, p);
          const uint32_t codes =
              __byte_perm(r < 2 ? bytes.x : bytes.y, 0x64646464, r % 2 == 0 ? 0x4140 : 0x4342);
          centered = __hsub2(pair_of<__half2>(codes), zero);
        }
        __half2 value = __hmul2(centered, of_row[r % 2]);
        if constexpr (kReadsAll && kHasPowers) value = __hmul2(value, second_of_row[r % 2]);
        a[i][r] = bits_of(value);
      }
    }
  }

  // Of 32 columns: the first or the second half of the stage.
  __device__ void load(Fragments& a, int half, const ExpertGemmParams& p) const {
    if constexpr (kWeights == GemvWeights::Float) {
      const uint4 upper = words(half), lower = words(2 + half);
      a[0][0] = upper.x;
      a[0][1] = lower.x;
      a[0][2] = upper.y;
      a[0][3] = lower.y;
      a[1][0] = upper.z;
      a[1][1] = lower.z;
      a[1][2] = upper.w;
      a[1][3] = lower.w;
    } else {
      const uint4 w = words(kWeights == GemvWeights::U8 ? half : 0);
      if constexpr (kReadsAll) {
        return load_halves(a, w, half, {all_scales[2 * half], all_scales[2 * half + 1]}, p);
      }
      if constexpr (std::is_same_v<T, __half> && !are_products(kFormat)) {
        if (!has_mins<kFormat>(p)) {
          __half2 scales[2];
          const bool are_halves = half_scales_of(scales[0], half * 2, p);
          if (half_scales_of(scales[1], half * 2 + 1, p) && are_halves) {
            return load_halves(a, w, half, scales, p);
          }
        }
      }
      // One branch around the whole load: with a predicate for each code, ptxas serializes wgmma
      // (C7513).
      if (has_mins<kFormat>(p)) {
        load_floats<true>(a, w, half, p);
      } else {
        load_floats<false>(a, w, half, p);
      }
    }
  }

  // Codes in f32.
  template <bool kMins>
  __device__ void load_floats(Fragments& a, const uint4& w, int half,
                              const ExpertGemmParams& p) const {
    constexpr int kZero = kMins ? 0 : zero_code_of(form_of(kWeights));
    constexpr bool kHasWideUnits = are_products(kFormat) && Stage::kUnit == 32;
    [[maybe_unused]] const HighWords<Stage::kHighBits> upper(tile + Stage::kHighAt,
                                                             int(threadIdx.x) % 32);
    RowScale s[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (i == 0 || !kHasWideUnits) scales_of<kMins>(s, half * 2 + i, p);
      if constexpr (kWeights == GemvWeights::U8 || kWeights == GemvWeights::Table) {
        const uint2 bytes = bytes_of(w, half, i, p);
#pragma unroll
        for (int r = 0; r < 4; ++r) {  // register r: row g + 8 (r % 2), columns from 2 (r / 2) on
          const int byte = r % 2 * 2;
          a[i][r] =
              dequantize_pair<T, kMins>(r < 2 ? bytes.x : bytes.y, byte, byte + 1, kZero, s[r % 2]);
        }
      } else {
        const auto codes =
            wide_codes<Stage::kBits, Stage::kHighBits>(word_of(w, half, i), upper.of(half * 2 + i));
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          a[i][r] = dequantize_pair<T, kMins>(r % 2 == 0 ? codes.low_row : codes.high_row, r / 2,
                                              2 + r / 2, kZero, s[r % 2]);
        }
      }
    }
  }
};

}  // namespace minfer::cuda
