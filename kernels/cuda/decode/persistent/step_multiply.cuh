#pragma once

#include "kernels/cuda/decode/persistent/step_cursor.cuh"
#include "kernels/cuda/decode/persistent/step_operands.cuh"

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
  const int lane = thread_index() % 32, warp = warp_index();
  const float* const x = reinterpret_cast<const float*>(input) + float_place(lane * 8);
  if (n_stages <= kFew) {
    const int row = warp % kRows, slice = warp / kRows;
    cursor.template take_singly<kFew>(
        ring, n_stages, [&](int stage, const uint8_t* const(&memory)[1]) {
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
  cursor.template take_singly<16>(ring, n_stages, [&](int stage, const uint8_t* const(&memory)[1]) {
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
  const int lane = thread_index() % 32, warp = warp_index();
  const int own_column = warp * (kStageColumns / kStepWarps) + lane * 8;
  const float* const x = reinterpret_cast<const float*>(input) + float_place(own_column);
  float* const to = scratch + warp * kStepMaxRows;
  for (int tile = 0; tile < n_tiles; ++tile) {
    float sum[kFloatRows] = {};
    cursor.template take<kFloatRows>(ring, kFloatRows * shape.n_stages,
                                     [&](int stage, const uint8_t* const(&rows)[kFloatRows]) {
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

// Calls f<number of tiles>(first tile) for each group of tiles, grouped as in the ring. The code
// for two tiles follows that for four, and that for one follows both, so that a smaller group is
// reached without a jump over them.
template <typename F>
__device__ inline void each_group(int n_tiles, F f) {
  int tile = 0;
#pragma unroll 1
  for (; tile + 4 <= n_tiles; tile += 4) f.template operator()<4>(tile);
  if (n_tiles & 2) {
    f.template operator()<2>(tile);
    tile += 2;
  }
  if (n_tiles & 1) f.template operator()<1>(tile);
}

// Multiplies kTiles tiles of 16 rows of codes. A scale is that of a row (kScales = 0), of one or
// several pieces (1), or of half a piece of U4 or of a table (2). Sums of codes times digits of x
// are exact, and each lane has those of one digit. The int32 sum of a row has room for 65536
// columns; that of a piece stays below 2^22 in magnitude, so that added to the bits of a float it
// gives another float, from which the same float with the sum of zero codes is subtracted. With
// kMins the codes have no zero code, and the minimum of a scale's columns is multiplied by the sum
// of x over them. The sums of a second token are those of the odd columns of B, and go to scratch
// kScratchFloats behind those of the first. Sums are added to those in scratch if the call says so.
//
// A step has four stages, kTiles of them of the same columns, so that groups of one and two tiles
// take no more steps than they must. at: from codes_lane. kAhead: StepCursor::take.
template <StepFormat kFormat, int kScales, bool kMins, int kTiles, bool kAhead = false,
          typename Clock, int kTokens>
__device__ inline void multiply_codes(const StepShape& shape, const StepRing& ring,
                                      const CodesLane& at, float* scratch,
                                      StepCursor<Clock>& cursor, const TableBytes& table, int tile,
                                      const float (&unit)[kTokens], bool adds_to_scratch = false) {
  using L = Codes<kFormat>;
  static_assert(!kMins || (kScales != 0 && kTokens == 1));
  constexpr int kColumns = 32 * L::kMmas, kSums = kScales == 2 ? 2 : 1;
  constexpr bool kByWords = kMultipliesWords<kFormat, kScales, kTokens>;
  using Words = WordsOfU4<kByWords ? kScales : 1, kMins>;
  static_assert(!kMins || kByWords || (kSums == L::kMmas && L::kUpperUnit == 1));
  const int lane = at.lane, warp = warp_index();
  float total[kTiles][2][kTokens] = {};    // kScales != 0: scaled sums of rows g and g + 8
  int sums[kTiles][4] = {}, zero[4] = {};  // kScales == 0: sums of codes, and of zero codes
  constexpr int kOwn = kStagePieces / kStepWarps, kStages = 4 / kTiles;  // of a step
  const auto words_of = [&](const uint8_t* memory, int k) {
    return *reinterpret_cast<const uint4*>(memory + at.words_at + k * kPieceBytes);
  };
  const auto scales_of = [&](const uint8_t* memory, int k) {
    return reinterpret_cast<const __half2*>(memory + (k == 0 ? at.scales_at[0] : at.scales_at[1]));
  };
  [[maybe_unused]] const auto mins_of = [&](const uint8_t* memory, int k) {
    return reinterpret_cast<const float2*>(memory + (k == 0 ? at.mins_at[0] : at.mins_at[1]));
  };
  const auto digits_of = [&](int step, int s, int k) {
    return at.x + ((kStages * step + s) * kStagePieces + k) * kColumns;
  };
  // Piece k of the warp in stage s of the step.
  const auto piece_by_words = [&](int step, const auto& slots, int s, int k) {
    const Words piece(digits_of(step, s, k), at.fixed);
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const uint8_t* const memory = slots[s * kTiles + j];
      piece.add(total[j][0][0], total[j][1][0], words_of(memory, k), scales_of(memory, k),
                mins_of(memory, k), at.fixed);
    }
  };
  const auto piece_by_mmas = [&](int step, const auto& slots, int s, int k) {
    uint32_t b[L::kMmas][2];
    load_digits(b, digits_of(step, s, k));
    [[maybe_unused]] int zeros[kSums][4];  // sums of zero codes of a scale's columns
    [[maybe_unused]] float sum_of_x[kSums];
    if constexpr (kMins) {
      int of_mmas[L::kMmas];
      sum_units<32, L::kMmas>(of_mmas, b);
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        sum_of_x[i] = float(of_mmas[i]);
      }
    } else {
#pragma unroll
      for (int mma = 0; mma < L::kMmas; ++mma) {
        int(&to)[4] = kScales == 0 ? zero : zeros[mma % kSums];
        const int(&before)[4] = to;
        const bool begins = kScales != 0 && mma < kSums;
        ptx::mma_m16n8k32<true>(to, at.fixed.a, b[mma][0], b[mma][1], begins ? at.fixed.c : before);
      }
    }
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const uint8_t* const memory = slots[s * kTiles + j];
      const uint4 w = words_of(memory, k);
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
          const int(&before)[4] = to;
          const bool is_first = mma < kSums;
          ptx::mma_m16n8k32<true>(to, a, b[mma][0], b[mma][1], is_first ? at.fixed.c : before);
        }
      }
      if constexpr (kScales != 0) {
        const __half2* const scales = scales_of(memory, k);
        [[maybe_unused]] const float2* const mins = mins_of(memory, k);
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
          const float2 f = __half22float2(scales[i * 8]);
#pragma unroll
          for (int token = 0; token < kTokens; ++token) {
            const auto less_zeros = [&](int n) {
              return __int_as_float(own[i][n]) - (kMins ? kCodesBase : __int_as_float(zeros[i][n]));
            };
            total[j][0][token] = fmaf(less_zeros(token), f.x, total[j][0][token]);
            total[j][1][token] = fmaf(less_zeros(2 + token), f.y, total[j][1][token]);
          }
          if constexpr (kMins) {
            const float2 min = mins[i * 8];
            total[j][0][0] = fmaf(sum_of_x[i], min.x, total[j][0][0]);
            total[j][1][0] = fmaf(sum_of_x[i], min.y, total[j][1][0]);
          }
        }
      }
    }
  };
  const auto piece = [&](auto&&... where) {
    if constexpr (kByWords) {
      piece_by_words(where...);
    } else {
      piece_by_mmas(where...);
    }
  };
  constexpr int kPieces = kStages * kStagePieces;  // of a step; n_pieces is not negative
  cursor.template take<kStages * kTiles, kAhead>(
      ring, kTiles * shape.n_stages, int(unsigned(shape.n_pieces) / kPieces),
      [&](int step, const auto& slots) {
#pragma unroll
        for (int s = 0; s < kStages; ++s)
#pragma unroll
          for (int k = 0; k < kOwn; ++k) piece(step, slots, s, k);
      },
      [&](int step, const auto& slots) {
#pragma unroll
        for (int s = 0; s < kStages; ++s) {
          const int n_left = shape.n_pieces - (kStages * step + s) * kStagePieces - warp * kOwn;
#pragma unroll 1
          for (int k = 0; k < min(n_left, kOwn); ++k) piece(step, slots, s, k);
        }
      });
  if constexpr (kScales == 0) {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int k = 0; k < kTokens; ++k) {
        total[j][0][k] = float(sums[j][k] - zero[k]);
        total[j][1][k] = float(sums[j][2 + k] - zero[2 + k]);
      }
    }
  }
  add_digits(total, lane, warp, scratch + tile * kTileRows, unit, kByWords ? Words::kOfLow : 1.0f,
             kByWords ? Words::kOfHigh : 1.0f / L::kUpperUnit, adds_to_scratch);
}

// Calls Loop::run<number of tiles> for all tiles of a round, as a function of its own with copies
// of what the kernel keeps in registers: inlined, loops beside those of the commonest formats take
// long to compile in each instance, and leave those with clocks no registers. It costs speed:
// inlined in instances of their own (StepWeights::Products), Q4_K and Q6_K are 2.5 % faster.
// input_at, scratch_at: in dynamic shared memory, so that the compiler knows where they point.
template <typename Loop, typename Clock>
__device__ __attribute__((noinline)) StepCursor<Clock> multiply_apart(
    StepShape shape, StepRing ring, int input_at, int scratch_at, StepCursor<Clock> cursor,
    TableBytes table, int n_tiles, float unit) {
  uint8_t* const memory = ptx::dynamic_shared<128>();
  ring.slots = memory;
  // For all that the compiler knows, lanes call a function with different numbers, and leave the
  // loops that end by these one by one (docs/decode.md).
  n_tiles = same_in_all_lanes(n_tiles);
  shape.n_stages = same_in_all_lanes(shape.n_stages);
  shape.n_pieces = same_in_all_lanes(shape.n_pieces);
  float* const scratch = reinterpret_cast<float*>(memory + scratch_at);
  const float units[] = {unit};
  each_group(n_tiles, [&]<int kTiles>(int tile) {
    Loop::template run<kTiles>(shape, ring, memory + input_at, scratch, cursor, table, tile, units);
  });
  return cursor;
}

template <StepFormat kFormat, int kScales, bool kMins>
struct CodesLoop {
  template <int kTiles, typename Clock>
  static __device__ void run(const StepShape& shape, const StepRing& ring, const uint8_t* input,
                             float* scratch, StepCursor<Clock>& cursor, const TableBytes& table,
                             int tile, const float (&unit)[1]) {
    multiply_codes<kFormat, kScales, kMins, kTiles>(
        shape, ring, codes_lane<kFormat, kScales, kMins>(shape, input), scratch, cursor, table,
        tile, unit);
  }
};

}  // namespace minfer::cuda
