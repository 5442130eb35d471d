#pragma once

#include "kernels/cuda/decode/persistent/step_multiply.cuh"

namespace minfer::cuda {

// Multiplies kTiles tiles of 16 rows of codes whose scales, and minimums with kMins, are products
// (quant/packed_layout.h), of units of kUnit columns. The digits of x are columns of the B operand
// as in multiply_codes. A warp has 4 units of a stage, 8 of U2 and U3, 2 of U5Short, all of one
// record: sums of codes times digits, times the whole numbers of their units, are added as exact
// integers, and then multiplied by the factor in f32. The largest, of U4, is below 2^28 with the 6
// bits that GGUF's numbers have there. Codes of U3, U6 and tables have a zero code: it times the
// sum, over the units, of number times sum of x is subtracted, two units at a time. Codes of U2 are
// multiplied by the numbers before they are by x: 3 times a number of four bits is a byte, so that
// one multiplication does four.
//
// The minimums of the warp's units are multiplied by the sums of x over these units: four of them,
// each plus 128, are row g of an A operand, the same in all lanes of a quad, and those sums, split
// in two bytes, columns 2 d and 2 d + 1 of B for digit d. Only the lane that has both, (g, g / 2),
// passes something else than zeros.
template <StepFormat kFormat, int kUnit, bool kMins, int kTiles, bool kKeeps = false,
          typename Clock>
__device__ inline void multiply_products(const StepShape& shape, const StepRing& ring,
                                         const uint8_t* input, float* scratch,
                                         StepCursor<Clock>& cursor, const TableBytes& table,
                                         int tile, const float (&unit)[1]) {
  using L = Codes<kFormat>;
  constexpr int kColumns = 32 * L::kMmas, kOwn = L::kPieces / kStepWarps;
  constexpr int kUnitsOfPiece = kColumns / kUnit, kUnits = kOwn * kUnitsOfPiece;
  constexpr int kUnitsOfChunk = int{kFactorColumns} / kUnit;
  constexpr int kWarpsOfChunk = kUnitsOfChunk / kUnits;
  constexpr int kScaleBytes = kTileRows * (2 + kUnitsOfChunk);
  constexpr int kUpperBitsAt = kScaleBytes * (kMins ? 2 : 1);
  constexpr int kRecordBytes = kUpperBitsAt + high_chunk_bytes(L::kHighBits);
  constexpr int kZero = kMins ? 0 : zero_code_of(L::kForm);
  constexpr bool kScalesCodes = kFormat == StepFormat::U2, kByWords = kFormat == StepFormat::U4;
  static_assert(!kScalesCodes || (kMins && kUnit == 16));
  static_assert(!kByWords || (kMins && kUnit == 32));
  static_assert(kZero == 0 || L::kUpperUnit == 1);
  constexpr int kTilesOfPiece = kColumns / kTileColumns;
  constexpr int kFours = (kUnits + 3) / 4;  // of units
  static_assert(kFormat != StepFormat::U8 && (kUnit == 32 || kUnit == 16));

  const int lane = thread_index() % 32, warp = warp_index(), g = lane / 4, t = lane % 4;
  const uint8_t* const x = digits_of_lane<L>(shape, input, lane) + warp * kOwn * kColumns +
                           (kByWords ? DigitsOfU4::place(lane) : 0);
  // Byte offsets in a stage: the lane's words; the factors of its rows in the record of the warp's
  // chunk; the numbers of its rows for four units, where the warp's begin at byte first_byte.
  const int record_at = L::kPieces * kPieceBytes + warp / kWarpsOfChunk * kRecordBytes;
  const int in_chunk = warp % kWarpsOfChunk;
  const int words_at = kept_of_lane(warp * kOwn * kPieceBytes + lane * 16);
  const int factors_at = kept_of_lane(record_at + g * 4);
  const int numbers_at =
      kept_of_lane(record_at + PackedLayout::number_place(g, in_chunk * kUnits / 4 * 4));
  const int first_byte = kUnits % 4 == 0 ? 0 : in_chunk * kUnits % 4;
  // Odd rows have the upper bytes of the sums of x, rounded, since the lower ones are signed.
  const int high_byte = g % 2 * 8, rounding = g % 2 * 128;
  const int mask_of_sums = kept_of_lane(t == g / 2 ? -1 : 0);
  [[maybe_unused]] FixedOperands fixed;
  if constexpr (kByWords) {
    fixed = ProductsOfU4::fixed();
    if constexpr (kKeeps) fixed.keep();
  }

  float total[kTiles][2][1] = {};
  cursor.template take<kTiles>(ring, kTiles * shape.n_stages, [&](int stage, const auto& slots) {
    if (stage * L::kPieces + warp * kOwn >= shape.n_pieces) return;
    [[maybe_unused]] uint32_t b[kOwn][L::kMmas][2];
    [[maybe_unused]] ProductsOfU4 by_words[kOwn];
    int of_units[kOwn][kUnitsOfPiece];  // sums of x over each unit
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      const uint8_t* const digits = x + (stage * L::kPieces + k) * kColumns;
      if constexpr (kByWords) {
        by_words[k] = ProductsOfU4(digits, fixed);
        by_words[k].get_sums_of_x(of_units[k]);
      } else {
        load_digits(b[k], digits);
        sum_units<kUnit, L::kMmas>(of_units[k], b[k]);
      }
    }
    const auto of_unit = [&](int i) { return of_units[i / kUnitsOfPiece][i % kUnitsOfPiece]; };
    [[maybe_unused]] uint32_t pairs_of_x[kFours][2];  // those sums, two in a word
    if constexpr (kZero != 0) {
      static_assert(kUnits % 4 == 0 && 128 * kUnit < 1 << 15);
      static_assert(int64_t{kUnits} * kUnit * 128 * 128 * (255 + kZero) < int64_t{1} << 31);
#pragma unroll
      for (int i = 0; i < kUnits; i += 2) {
        pairs_of_x[i / 4][i / 2 % 2] = __byte_perm(of_unit(i), of_unit(i + 1), 0x5410);
      }
    }
    [[maybe_unused]] uint32_t sums_of_x[kFours] = {};
    // MMAs multiply numbers plus 128 by those; their sum begins with -128 times sums_of_x.
    [[maybe_unused]] int less_128[4] = {};
    if constexpr (kMins) {  // the sum is its lower byte, signed, plus 256 times the upper one
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        const int sum = of_unit(i) + rounding;
        sums_of_x[i / 4] |= (uint32_t(sum) >> high_byte & 0xff) << (8 * (i % 4 + first_byte));
      }
#pragma unroll
      for (uint32_t& four : sums_of_x) {
        four &= uint32_t(mask_of_sums);
        ptx::mma_m16n8k16<false>(less_128, 0x80808080, 0x80808080, four, less_128);
      }
    }
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const auto* const factors = reinterpret_cast<const __half2*>(slots[j] + factors_at);
      const float2 factor = __half22float2(*factors);
      int low_row = 0, high_row = 0;
      [[maybe_unused]] uint32_t scaled[4];
      [[maybe_unused]] int sum_of_scaled[4] = {};
      uint2 numbers{};
#pragma unroll
      for (int k = 0; k < kOwn; ++k) {
        const uint4 w = *reinterpret_cast<const uint4*>(slots[j] + words_at + k * kPieceBytes);
        [[maybe_unused]] const HighWords<L::kHighBits, kTilesOfPiece> high(
            slots[j] + record_at + kUpperBitsAt +
                (in_chunk * kOwn + k) * kTilesOfPiece * high_tile_bytes(L::kHighBits),
            lane);
        [[maybe_unused]] int less_low[2], high_sums[2];
#pragma unroll
        for (int i = 0; i < kUnitsOfPiece; ++i) {
          const int at = k * kUnitsOfPiece + i;
          [[maybe_unused]] const int m = i * kUnit / 32;
          if (at % 4 == 0) {
            numbers = *reinterpret_cast<const uint2*>(slots[j] + numbers_at + at * kTileRows);
            numbers = {numbers.x ^ 0x80808080, numbers.y ^ 0x80808080};
            if constexpr (kZero != 0) {  // what the zero code adds to the sums of four units
              const auto add_zeros = [&](int& row, uint32_t its_numbers) {
                const uint32_t(&pairs)[2] = pairs_of_x[at / 4];
                const int first_two = ptx::dot_of_two<false>(pairs[0], its_numbers, 0);
                row -= kZero * ptx::dot_of_two<true>(pairs[1], its_numbers, first_two);
              };
              add_zeros(low_row, numbers.x);
              add_zeros(high_row, numbers.y);
            }
          }
          const int byte = at % 4 + first_byte;
          [[maybe_unused]] uint32_t a[4];
          if constexpr (kFormat == StepFormat::Table) {
            L::get(a, w, m, table);
          } else if constexpr (!kByWords) {
            L::get(a, w, m, high);
          }
          if constexpr (kScalesCodes) {
            const int half = i % 2;
            scaled[2 * half] = a[2 * half] * __byte_perm(numbers.x, 0, 0x4440 + byte);
            scaled[2 * half + 1] = a[2 * half + 1] * __byte_perm(numbers.y, 0, 0x4440 + byte);
            if (half == 1) {
              ptx::mma_m16n8k32<true>(sum_of_scaled, scaled, b[k][m][0], b[k][m][1], sum_of_scaled);
            }
          } else if constexpr (kByWords) {
            if (i == 0) by_words[k].multiply(less_low, high_sums, w);
            low_row += less_low[i] * ptx::signed_byte(numbers.x, byte);
            high_row += high_sums[i] * ptx::signed_byte(numbers.y, byte);
          } else {
            int sum[4] = {};
            if constexpr (kUnit == 32) {
              ptx::mma_m16n8k32<true>(sum, a, b[k][m][0], b[k][m][1], sum);
            } else {
              const int half = i % 2;
              ptx::mma_m16n8k16<true>(sum, a[2 * half], a[2 * half + 1], b[k][m][half], sum);
            }
            low_row += sum[0] * ptx::signed_byte(numbers.x, byte);
            high_row += sum[2] * ptx::signed_byte(numbers.y, byte);
          }
        }
      }
      if constexpr (kScalesCodes) {
        low_row = sum_of_scaled[0];
        high_row = sum_of_scaled[2];
      }
      float& low_total = total[j][0][0];
      float& high_total = total[j][1][0];
      // ProductsOfU4 has negative sums of row g.
      low_total = fmaf(float(low_row), kByWords ? -factor.x : factor.x, low_total);
      high_total = fmaf(float(high_row), factor.y, high_total);
      if constexpr (kMins) {
        const uint8_t* const mins = slots[j] + numbers_at + kScaleBytes;
        const float2 min_factor = __half22float2(factors[kScaleBytes / 4]);
        int sum[4];
#pragma unroll
        for (int i = 0; i < kFours; ++i) {
          const uint2 four = *reinterpret_cast<const uint2*>(mins + i * 4 * kTileRows);
          ptx::mma_m16n8k16<true>(sum, four.x, four.y, sums_of_x[i], i == 0 ? less_128 : sum);
        }
        low_total = fmaf(float(sum[0] + 256 * sum[1]), min_factor.x, low_total);
        high_total = fmaf(float(sum[2] + 256 * sum[3]), min_factor.y * L::kUpperUnit, high_total);
      }
    }
  });
  add_digits(total, lane, warp, scratch + tile * kTileRows, unit, 1.0f, 1.0f / L::kUpperUnit);
}

template <StepFormat kFormat, int kUnit, bool kMins>
struct ProductsLoop {
  template <int kTiles, typename... Args>
  static __device__ void run(Args&&... args) {
    multiply_products<kFormat, kUnit, kMins, kTiles>(args...);
  }
};

}  // namespace minfer::cuda
