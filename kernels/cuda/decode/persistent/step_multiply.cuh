#pragma once

#include "kernels/cuda/decode/persistent/step_cursor.cuh"
#include "kernels/cuda/decode/persistent/step_input.cuh"
#include "kernels/cuda/quant/code_four.cuh"

// The inner loops of a GEMV: a warp multiplies the staged input by tiles of floats, or of codes
// with scales of rows or units. It leaves its sum of a row in scratch[warp][row], unless another
// place is named.
namespace minfer::cuda {

// Adds to the sums of kRows rows of float weights the products of eight columns, from `column` on,
// and of x, staged from float_place(column) on.
template <bool kBf16, int kRows>
__device__ inline void add_eight(float (&sum)[kRows], const uint8_t* const (&rows)[kRows],
                                 int column, const float* x) {
  const float4 low = *reinterpret_cast<const float4*>(x);
  const float4 high = *reinterpret_cast<const float4*>(x + 32);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const uint4 w = *reinterpret_cast<const uint4*>(rows[r] + 2 * column);
    const float2 w0 = floats_of(w.x, kBf16), w1 = floats_of(w.y, kBf16);
    const float2 w2 = floats_of(w.z, kBf16), w3 = floats_of(w.w, kBf16);
    sum[r] = fmaf(w0.x, low.x, sum[r]);
    sum[r] = fmaf(w0.y, low.y, sum[r]);
    sum[r] = fmaf(w1.x, low.z, sum[r]);
    sum[r] = fmaf(w1.y, low.w, sum[r]);
    sum[r] = fmaf(w2.x, high.x, sum[r]);
    sum[r] = fmaf(w2.y, high.y, sum[r]);
    sum[r] = fmaf(w3.x, high.z, sum[r]);
    sum[r] = fmaf(w3.y, high.w, sum[r]);
  }
}

// Adds the sums of all lanes of four rows: each eight lanes get that of one row, in their order.
__device__ inline float sums_of_lanes(const float (&sum)[kFloatRows]) {
  // Halves and then quarters of the warp exchange the rows that the other one keeps.
  const bool upper = thread_index() & 16, odd = thread_index() & 8;
  const float a = (upper ? sum[2] : sum[0]) + __shfl_xor_sync(~0u, upper ? sum[0] : sum[2], 16);
  const float b = (upper ? sum[3] : sum[1]) + __shfl_xor_sync(~0u, upper ? sum[1] : sum[3], 16);
  float total = (odd ? b : a) + __shfl_xor_sync(~0u, odd ? a : b, 8);
#pragma unroll
  for (int d = 4; d > 0; d /= 2) total += __shfl_xor_sync(~0u, total, d);
  return total;
}

// The slices of a row that warps multiply, where a stage has n_rows whole rows.
__host__ __device__ constexpr int row_slices(int n_rows) { return kStepWarps / n_rows; }

// Multiplies stages of kRows whole rows of float weights, in f32. If there are few stages, each
// warp has a slice of one row of each, every row_slices()-th 256 columns. Else it has every eighth
// stage, and adds the lanes' sums of all its rows at once: three stages take as long either way.
// The sums of a row are in scratch[0 ... row_slices() - 1][row].
template <bool kBf16, int kRows, typename Clock>
__device__ inline void multiply_rows(int in_dim, const StepRing& ring, const uint8_t* input,
                                     float* scratch, StepCursor<Clock>& cursor, int n_stages) {
  constexpr int kSlices = row_slices(kRows), kFew = 3;
  const int lane = thread_index() % 32, warp = thread_index() / 32;
  const float* const x = reinterpret_cast<const float*>(input) + float_place(lane * 8);
  if (n_stages <= kFew) {
    const int row = warp % kRows, slice = warp / kRows;
    cursor.template take<1, kFew>(ring, n_stages, [&](int stage, const uint8_t* const(&memory)[1]) {
      const uint8_t* const rows[1] = {memory[0] + row * 2 * in_dim};
      float sum[1] = {};
      for (int at = 256 * slice; at + lane * 8 < in_dim; at += 256 * kSlices) {
        add_eight<kBf16>(sum, rows, at + lane * 8, x + at);
      }
      __syncwarp();
      const float total = warp_reduce(sum[0], Sum{});
      if (lane == 0) scratch[slice * kStepMaxRows + stage * kRows + row] = total;
    });
    return;
  }
  cursor.template take<1, 16>(ring, n_stages, [&](int stage, const uint8_t* const(&memory)[1]) {
    if (stage % kStepWarps != warp) return;
    const uint8_t* rows[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) rows[r] = memory[0] + r * 2 * in_dim;
    float sum[kRows] = {};
    for (int at = 0; at + lane * 8 < in_dim; at += 256) {
      add_eight<kBf16>(sum, rows, at + lane * 8, x + at);
    }
    __syncwarp();
    const auto of_row = [&](int r) { return r < kRows ? sum[r % kRows] : 0.0f; };
    const float total = sums_of_lanes({of_row(0), of_row(1), of_row(2), of_row(3)});
    const int row = lane / 8, slice = lane % 8;
    if (row >= kRows || slice >= kSlices) return;
    scratch[slice * kStepMaxRows + stage * kRows + row] = slice == 0 ? total : 0.0f;
  });
}

// Multiplies tiles of 4 rows of float weights, in f32. A stage is 4096 columns of one row, of which
// each warp has 512; lane l has the 8 columns from 8 l on in each 256.
template <bool kBf16, typename Clock>
__device__ inline void multiply_floats(const StepShape& shape, const StepRing& ring,
                                       const uint8_t* input, float* scratch,
                                       StepCursor<Clock>& cursor, int n_tiles) {
  const int lane = thread_index() % 32, warp = thread_index() / 32;
  const int own_column = warp * (kStageColumns / kStepWarps) + lane * 8;
  const float* const x = reinterpret_cast<const float*>(input) + float_place(own_column);
  float* const to = scratch + warp * kStepMaxRows;
  for (int tile = 0; tile < n_tiles; ++tile) {
    float sum[kFloatRows] = {};
    cursor.template take<kFloatRows, 1>(
        ring, shape.n_stages, [&](int stage, const uint8_t* const(&rows)[kFloatRows]) {
          const int first = stage * kStageColumns;
#pragma unroll
          for (int k = 0; k < kStageColumns / kStepWarps / 256; ++k) {
            const int column = own_column + k * 256;
            if (first + column >= shape.in_dim) break;
            add_eight<kBf16>(sum, rows, column, x + first + k * 256);
          }
        });
    const float total = sums_of_lanes(sum);
    if (lane % 8 == 0) to[tile * kFloatRows + lane / 8] = total;
  }
}

// Calls f<number of tiles>(first tile) for each group of tiles, grouped as in the ring.
template <typename F>
__device__ inline void each_group(int n_tiles, F f) {
  for (int tile = 0, n; tile < n_tiles; tile += n) {
    n = stream_group(n_tiles - tile);
    if (n == 4) f.template operator()<4>(tile);
    if (n == 2) f.template operator()<2>(tile);
    if (n == 1) f.template operator()<1>(tile);
  }
}

// How lane (g, t) of mma.m16n8k32 unpacks a piece into A fragments of rows g and g + 8, for each of
// the kMmas instructions of a piece. Codes of row g + 8 come times kUpperUnit and, with
// kUpperHoldsLower, plus those of row g. kZero and kUpperZero are minus the zero codes of both
// rows, as signed bytes.
template <StepFormat>
struct Codes;
template <>
struct Codes<StepFormat::U4> {
  static constexpr CodeForm kForm = CodeForm::U4;
  static constexpr int kMmas = 2, kUpperUnit = 16;
  static constexpr int kPieces = stage_pieces(StepFormat::U4);
  static constexpr bool kUpperHoldsLower = true;  // the whole byte is taken, without a mask
  static constexpr uint32_t kZero = 0xf8f8f8f8, kUpperZero = 0x80808080;
  static constexpr int kHighBits = 0;
  static __device__ void get(uint32_t (&a)[4], const uint4& w, int mma) {
    const uint32_t first = mma == 0 ? w.x : w.z, second = mma == 0 ? w.y : w.w;
    a[0] = first & 0x0f0f0f0f;
    a[1] = first;
    a[2] = second & 0x0f0f0f0f;
    a[3] = second;
  }
};
// The entries of a table for the codes, as U8.
template <>
struct Codes<StepFormat::Table> {
  static constexpr CodeForm kForm = CodeForm::Table;
  static constexpr int kMmas = 2, kUpperUnit = 1, kHighBits = 0;
  static constexpr int kPieces = stage_pieces(StepFormat::Table);
  static constexpr bool kUpperHoldsLower = false;
  static constexpr uint32_t kZero = 0x80808080, kUpperZero = 0x80808080;
  static __device__ void get(uint32_t (&a)[4], const uint4& w, int mma, const TableBytes& table) {
    const uint32_t words[] = {mma == 0 ? w.x : w.z, mma == 0 ? w.y : w.w};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t low = look_up_four(table, words[i]);
      const uint32_t high = look_up_four(table, words[i] >> 16);
      a[2 * i] = __byte_perm(low, high, 0x6420);
      a[2 * i + 1] = __byte_perm(low, high, 0x7531);
    }
  }
};
// Codes with upper bits, and of two bits, without a zero code. `high`: the upper bits of the piece.
template <CodeForm kForm_>
struct CodesOfWide {
  static constexpr CodeForm kForm = kForm_;
  static constexpr int kBits = bits_of(kForm), kHighBits = high_bits_of(kForm);
  static constexpr int kMmas = 8 / kBits, kUpperUnit = 1;
  static constexpr bool kUpperHoldsLower = false;
  static __device__ void get(uint32_t (&a)[4], const uint4& w, int mma,
                             const HighWords<kHighBits, kMmas / 2>& high) {
    const uint32_t words[4] = {w.x, w.y, w.z, w.w};
    const uint32_t first_word = words[kBits == 2 ? mma : 2 * mma];
    const uint32_t second_word = kBits == 2 ? first_word >> 4 : words[2 * mma + 1];
    const auto first = wide_codes<kBits, kHighBits>(first_word, high.of(2 * mma));
    const auto second = wide_codes<kBits, kHighBits>(second_word, high.of(2 * mma + 1));
    a[0] = first.low_row;
    a[1] = first.high_row;
    a[2] = second.low_row;
    a[3] = second.high_row;
  }
};
template <>
struct Codes<StepFormat::U2> : CodesOfWide<CodeForm::U2> {
  static constexpr int kPieces = stage_pieces(StepFormat::U2);
};
template <>
struct Codes<StepFormat::U3> : CodesOfWide<CodeForm::U3> {
  static constexpr int kPieces = stage_pieces(StepFormat::U3);
};
template <>
struct Codes<StepFormat::U5> : CodesOfWide<CodeForm::U5> {
  static constexpr int kPieces = stage_pieces(StepFormat::U5);
};
template <>
struct Codes<StepFormat::U5Short> : CodesOfWide<CodeForm::U5> {
  static constexpr int kPieces = stage_pieces(StepFormat::U5Short);
};
template <>
struct Codes<StepFormat::U6> : CodesOfWide<CodeForm::U6> {
  static constexpr int kPieces = stage_pieces(StepFormat::U6);
};
template <>
struct Codes<StepFormat::U8> {
  static constexpr int kMmas = 1, kUpperUnit = 1;
  static constexpr int kPieces = stage_pieces(StepFormat::U8);
  static constexpr bool kUpperHoldsLower = false;
  static constexpr uint32_t kZero = 0x80808080, kUpperZero = 0x80808080;
  static __device__ void get(uint32_t (&a)[4], const uint4& w, int) {
    a[0] = __byte_perm(w.x, w.y, 0x5410);
    a[1] = __byte_perm(w.x, w.y, 0x7632);
    a[2] = __byte_perm(w.z, w.w, 0x5410);
    a[3] = __byte_perm(w.z, w.w, 0x7632);
  }
};

// The staged digits of the first stage's columns, as lane (g, t) reads them: those of one place are
// columns 0, 2, 4 and 6 of the B operand, and the columns behind these are those of a second token,
// or once more the same. Those of a lane are adjacent in each 64 columns, of U8 in each 32
// (digit_place).
template <typename L, int kTokens = 1>
__device__ inline const uint8_t* digits_of_lane(const StepShape& shape, const uint8_t* input) {
  const int lane = thread_index() % 32, g = lane / 4, t = lane % 4;
  const int of_token = kTokens == 1 ? 0 : g % 2 * shape.token_stride;
  return input + of_token + g / 2 * digit_stride(shape.in_dim) + t * (8 * min(L::kMmas, 2)) +
         shape.first_stage * (L::kPieces * 32 * L::kMmas);
}
// The lane's B operands of a piece.
template <int kMmas>
__device__ inline void load_digits(uint32_t (&b)[kMmas][2], const uint8_t* from) {
  if constexpr (kMmas >= 2) {
#pragma unroll
    for (int i = 0; i < kMmas; i += 2) {
      const uint4 digits = *reinterpret_cast<const uint4*>(from + i * 32);
      b[i][0] = digits.x;
      b[i][1] = digits.y;
      b[i + 1][0] = digits.z;
      b[i + 1][1] = digits.w;
    }
  } else {
    const uint2 digits = *reinterpret_cast<const uint2*>(from);
    b[0][0] = digits.x;
    b[0][1] = digits.y;
  }
}

// The sums over each unit of a piece's columns that the four digits of x have; lane (g, t) gets
// those of digit t, plus `first`. b: the B operands of the piece.
template <int kUnit, int kMmas>
__device__ inline void sum_units(int (&sums)[32 * kMmas / kUnit], const uint32_t (&b)[kMmas][2],
                                 int first) {
  constexpr uint32_t kOnes = 0x01010101;
#pragma unroll
  for (int i = 0; i < 32 * kMmas / kUnit; ++i) {
    int sum[4] = {first, first, first, first};
    if constexpr (kUnit == 32) {
      ptx::mma_m16n8k32<true>(sum, {kOnes, kOnes, kOnes, kOnes}, b[i][0], b[i][1], sum);
    } else {
      ptx::mma_m16n8k16<true>(sum, kOnes, kOnes, b[i / 2][i % 2], sum);
    }
    sums[i] = sum[0];
  }
}

// Adds the digits of x of a token: lane (g, t) has the sums of digit t for rows g and g + 8 of each
// tile, the latter times kUpperUnit; the four lanes of a quad add theirs, and two of them keep each
// row.
template <int kUpperUnit, int kTiles, int kTokens>
__device__ inline void add_digits(const float (&total)[kTiles][2][kTokens], int token,
                                  float* scratch, float unit) {
  const int lane = thread_index() % 32, warp = thread_index() / 32, g = lane / 4, t = lane % 4;
  const float digit = __uint_as_float(uint32_t(127 + 8 * t) << 23) * kDigitUnit * unit;
  float* const to = scratch + token * kScratchFloats + warp * kStepMaxRows + g;
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    const float low = total[j][0][token] * digit, high = total[j][1][token] * (digit / kUpperUnit);
    const bool odd = t & 1;
    float sum = (odd ? high : low) + __shfl_xor_sync(~0u, odd ? low : high, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (t < 2) to[j * kTileRows + 8 * t] = sum;
  }
}

// Multiplies kTiles tiles of 16 rows of codes. A scale is that of a row (kScales = 0), of one or
// several pieces (1), or of half a piece of U4 or of a table (2). The digits of x are columns 0, 2,
// 4 and 6 of the B operand, so that each lane has the sums of one digit; sums of codes times digits
// are exact. The sum of a piece stays below 2^22 in magnitude, so that added to the bits of the
// float 1.5 * 2^23 it gives that float plus the sum. The int32 sum of a row has room for 65536
// columns. With kMins the codes have no zero code, and the minimum of a scale's columns is
// multiplied by the sum of x over them. The sums of a second token are those of columns 1, 3, 5 and
// 7, and go to scratch kScratchFloats behind those of the first.
template <StepFormat kFormat, int kScales, bool kMins, int kTiles, typename Clock, int kTokens>
__device__ inline void multiply_codes(const StepShape& shape, const StepRing& ring,
                                      const uint8_t* input, float* scratch,
                                      StepCursor<Clock>& cursor, const TableBytes& table, int tile,
                                      const float (&unit)[kTokens]) {
  using L = Codes<kFormat>;
  static_assert(!kMins || (kScales != 0 && kTokens == 1));
  constexpr int kColumns = 32 * L::kMmas, kSums = kScales == 2 ? 2 : 1;
  constexpr float kBase = 0x1.8p23f;
  const int lane = thread_index() % 32, warp = thread_index() / 32, g = lane / 4;
  const uint8_t* const x = digits_of_lane<L, kTokens>(shape, input);
  const int pieces_shift = shape.unit_shift - (kFormat == StepFormat::U4 ? 6 : 5);
  float total[kTiles][2][kTokens] = {};    // kScales != 0: scaled sums of rows g and g + 8
  int sums[kTiles][4] = {}, zero[4] = {};  // kScales == 0: sums of codes, and of minus zero codes
  cursor.template take<kTiles, 16 / kTiles>(
      ring, shape.n_stages, [&](int stage, const auto& slots) {
        const auto piece = [&](int in_stage) {
          uint32_t b[L::kMmas][2];
          load_digits(b, x + (stage * kStagePieces + in_stage) * kColumns);
          constexpr int kBits = 0x4b400000;  // the bits of kBase
          int begin[kSums][4] = {{kBits, kBits, kBits, kBits}};
          if constexpr (kSums == 2) begin[1][0] = begin[1][1] = begin[1][2] = begin[1][3] = kBits;
          [[maybe_unused]] float sum_of_x[kSums];
          if constexpr (kMins) {
            int of_mmas[L::kMmas];
            sum_units<32, L::kMmas>(of_mmas, b, 0);
#pragma unroll
            for (int i = 0; i < kSums; ++i) {
              sum_of_x[i] = float(kSums == L::kMmas ? of_mmas[i] : of_mmas[0] + of_mmas[1]);
            }
          } else {
#pragma unroll
            for (int mma = 0; mma < L::kMmas; ++mma) {
              int(&less)[4] = kScales == 0 ? zero : begin[mma % kSums];
              ptx::mma_m16n8k32<false>(less, {L::kZero, L::kUpperZero, L::kZero, L::kUpperZero},
                                       b[mma][0], b[mma][1], less);
            }
            if constexpr (kScales != 0 && L::kUpperHoldsLower) {
#pragma unroll
              for (int i = 0; i < kSums; ++i) {
#pragma unroll
                for (int k = 0; k < kTokens; ++k) begin[i][2 + k] += begin[i][k] - kBits;
              }
            }
          }
#pragma unroll
          for (int j = 0; j < kTiles; ++j) {
            const uint4 w =
                *reinterpret_cast<const uint4*>(slots[j] + in_stage * kPieceBytes + lane * 16);
            [[maybe_unused]] int own[kSums][4];
#pragma unroll
            for (int mma = 0; mma < L::kMmas; ++mma) {
              uint32_t a[4];
              if constexpr (kFormat == StepFormat::Table) {
                L::get(a, w, mma, table);
              } else {
                L::get(a, w, mma);
              }
              if constexpr (kScales == 0) {
                ptx::mma_m16n8k32<true>(sums[j], a, b[mma][0], b[mma][1], sums[j]);
              } else {
                int(&to)[4] = own[mma % kSums];
                const bool is_first = mma < kSums;
                ptx::mma_m16n8k32<true>(to, a, b[mma][0], b[mma][1],
                                        is_first ? begin[mma % kSums] : to);
              }
            }
            if constexpr (kScales != 0) {
              const auto* const scales =
                  reinterpret_cast<const __half2*>(slots[j] + kStageBytes) + g;
#pragma unroll
              for (int i = 0; i < kSums; ++i) {
                const int unit = kScales == 2 ? 2 * in_stage + i : in_stage >> pieces_shift;
                const float2 f = __half22float2(scales[unit * 8]);
#pragma unroll
                for (int k = 0; k < kTokens; ++k) {
                  const float low = __int_as_float(own[i][k]);
                  const float high = __int_as_float(own[i][2 + k]);
                  const float less = L::kUpperHoldsLower ? low : kBase;
                  total[j][0][k] = fmaf(low - kBase, f.x, total[j][0][k]);
                  total[j][1][k] = fmaf(high - less, f.y, total[j][1][k]);
                }
                if constexpr (kMins) {
                  const auto* const mins = reinterpret_cast<const float2*>(slots[j] + kStageBytes +
                                                                           shape.stage_scale_bytes);
                  const float2 min = mins[unit * 8 + g];
                  total[j][0][0] = fmaf(sum_of_x[i], min.x, total[j][0][0]);
                  total[j][1][0] = fmaf(sum_of_x[i], min.y * L::kUpperUnit, total[j][1][0]);
                }
              }
            }
          }
        };
        constexpr int kOwn = kStagePieces / kStepWarps;
        const int n_here = shape.n_pieces - stage * kStagePieces;
        if (n_here >= kStagePieces) {
#pragma unroll
          for (int k = 0; k < kOwn; ++k) piece(warp * kOwn + k);
        } else {
#pragma unroll 1
          for (int k = warp * kOwn; k < min(n_here, (warp + 1) * kOwn); ++k) piece(k);
        }
      });
  if constexpr (kScales == 0) {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int k = 0; k < kTokens; ++k) {
        const int less = L::kUpperHoldsLower ? sums[j][k] : 0;
        total[j][0][k] = float(sums[j][k] + zero[k]);
        total[j][1][k] = float(sums[j][2 + k] - less + zero[2 + k]);
      }
    }
  }
#pragma unroll
  for (int k = 0; k < kTokens; ++k) {
    add_digits<L::kUpperUnit>(total, k, scratch + tile * kTileRows, unit[k]);
  }
}

// Calls Loop::run<number of tiles> for all tiles of a round, as a function of its own with copies
// of what the kernel keeps in registers: inlined, loops beside those of the commonest formats take
// long to compile in each instance, and leave those with clocks no registers. Measured: it costs
// Q4_K_M 2 %. input_at, scratch_at: in dynamic shared memory, so that the compiler knows where they
// point.
template <typename Loop, typename Clock>
__device__ __attribute__((noinline)) StepCursor<Clock> multiply_apart(
    StepShape shape, StepRing ring, int input_at, int scratch_at, StepCursor<Clock> cursor,
    TableBytes table, int n_tiles, float unit) {
  uint8_t* const memory = ptx::dynamic_shared<128>();
  ring.slots = memory;
  float* const scratch = reinterpret_cast<float*>(memory + scratch_at);
  const float units[] = {unit};
  each_group(n_tiles, [&]<int kTiles>(int tile) {
    Loop::template run<kTiles>(shape, ring, memory + input_at, scratch, cursor, table, tile, units);
  });
  return cursor;
}

template <StepFormat kFormat, int kScales, bool kMins>
struct CodesLoop {
  template <int kTiles, typename... Args>
  static __device__ void run(Args&&... args) {
    multiply_codes<kFormat, kScales, kMins, kTiles>(args...);
  }
};

}  // namespace minfer::cuda
