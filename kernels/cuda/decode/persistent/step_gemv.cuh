#pragma once

#include "kernels/cuda/decode/persistent/step_clocks.cuh"
#include "kernels/cuda/decode/persistent/step_input.cuh"
#include "kernels/cuda/decode/persistent/step_ring.cuh"
#include "kernels/cuda/gemv/epilogue.cuh"
#include "kernels/cuda/quant/packed_layout.h"

// Multiplies the staged input by tiles of weights as they come through the ring. Each warp has the
// same columns of every stage, and leaves its sum of a row in scratch[warp][row].
namespace minfer::cuda {

// The sizes that the inner loops of a GEMV read.
struct StepShape {
  int first_stage, n_stages;
  int n_pieces;  // from the first stage on
  int in_dim, unit_shift;
};

// Clock: StepClock or NoClock.
template <typename Clock>
struct StepCursor {
  Clock clock;
  int slot = 0, parity = 0;

  // Calls f(i, memory of the next kN stages) for i = 0 ... n_steps - 1, and releases the stages
  // after each call. Lane i polls and releases the i-th slot from here on, so that one poll covers
  // all steps that are ready.
  template <int kN, int kMostSteps, typename F>
  __device__ void take(const StepRing& ring, int n_steps, F f) {
    const int lane = thread_index() % 32;
    for (int step = 0; step < n_steps;) {
      const int n_wanted = min(min(n_steps - step, kMostSteps) * kN, ring.n_slots / kN * kN);
      int own = slot + min(lane, n_wanted - 1);
      const bool wraps = own >= ring.n_slots;
      if (wraps) own -= ring.n_slots;
      unsigned missing;
      uint32_t began = 0;
      for (bool waits = false;; waits = true) {
        missing = __ballot_sync(
            ~0u, !ptx::mbarrier_is_complete(ring.full + 8 * own, parity ^ int(wraps)));
        if ((missing & ((1u << kN) - 1)) == 0) {
          if (waits) clock.end_wait(began);
          break;
        }
        if (!waits) began = clock.now();
        ptx::before_next_try();
      }
      __syncwarp();  // makes the copies that one lane has seen visible to all lanes
      // Lanes from n_wanted on test the last slot too. They may miss it although its own lane sees
      // it full, since nothing makes lanes test at the same time: hence the minimum.
      const int n_ready = int(min(unsigned(n_wanted), unsigned(__ffs(int(missing)) - 1))) / kN;
      for (int i = 0; i < n_ready; ++i) {
        const uint8_t* memory[kN];
        int slots[kN];
#pragma unroll
        for (int k = 0; k < kN; ++k) {
          slots[k] = slot;
          memory[k] = ring.slots + slot * ring.slot_bytes;
          if constexpr (kIsCheckable) {
            while (!ptx::mbarrier_is_complete(ring.full + 8 * slot, parity)) {
            }
          }
          if (++slot == ring.n_slots) {
            slot = 0;
            parity ^= 1;
          }
        }
        f(step + i, memory);
        __syncwarp();
        if constexpr (kIsCheckable) {
          for (const int read : slots) ptx::mbarrier_arrive_if(true, ring.empty + 8 * read);
        } else {
          ptx::mbarrier_arrive_if(lane / kN == i, ring.empty + 8 * own);
        }
      }
      step += n_ready;
    }
  }
};

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
            const float4 low = *reinterpret_cast<const float4*>(x + first + k * 256);
            const float4 high = *reinterpret_cast<const float4*>(x + first + k * 256 + 32);
#pragma unroll
            for (int r = 0; r < kFloatRows; ++r) {
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
        });
    // Each eight lanes end with the sum of one row: halves and then quarters of the warp exchange
    // the rows that the other one keeps.
    const bool upper = lane & 16, odd = lane & 8;
    const float a = (upper ? sum[2] : sum[0]) + __shfl_xor_sync(~0u, upper ? sum[0] : sum[2], 16);
    const float b = (upper ? sum[3] : sum[1]) + __shfl_xor_sync(~0u, upper ? sum[1] : sum[3], 16);
    float total = (odd ? b : a) + __shfl_xor_sync(~0u, odd ? a : b, 8);
#pragma unroll
    for (int d = 4; d > 0; d /= 2) total += __shfl_xor_sync(~0u, total, d);
    if (lane % 8 == 0) to[tile * kFloatRows + lane / 8] = total;
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
  static constexpr int kMmas = 2, kUpperUnit = 16;
  static constexpr bool kUpperHoldsLower = true;  // the whole byte is taken, without a mask
  static constexpr uint32_t kZero = 0xf8f8f8f8, kUpperZero = 0x80808080;
  static __device__ void get(uint32_t (&a)[4], const uint4& w, int mma) {
    const uint32_t first = mma == 0 ? w.x : w.z, second = mma == 0 ? w.y : w.w;
    a[0] = first & 0x0f0f0f0f;
    a[1] = first;
    a[2] = second & 0x0f0f0f0f;
    a[3] = second;
  }
};
template <>
struct Codes<StepFormat::U8> {
  static constexpr int kMmas = 1, kUpperUnit = 1;
  static constexpr bool kUpperHoldsLower = false;
  static constexpr uint32_t kZero = 0x80808080, kUpperZero = 0x80808080;
  static __device__ void get(uint32_t (&a)[4], const uint4& w, int) {
    a[0] = __byte_perm(w.x, w.y, 0x5410);
    a[1] = __byte_perm(w.x, w.y, 0x7632);
    a[2] = __byte_perm(w.z, w.w, 0x5410);
    a[3] = __byte_perm(w.z, w.w, 0x7632);
  }
};

// Multiplies kTiles tiles of 16 rows of codes. A scale is that of a row (kScales = 0), of one or
// several pieces (1), or of half a piece of U4 (2). The digits of x are columns 0, 2, 4 and 6 of
// the B operand, so that each lane has the sums of one digit; sums of codes times digits are exact.
// The sum of a piece stays below 2^22 in magnitude, so that added to the bits of the float 1.5 *
// 2^23 it gives that float plus the sum. The int32 sum of a row has room for 65536 columns.
template <StepFormat kFormat, int kScales, int kTiles, typename Clock>
__device__ inline void multiply_codes(const StepShape& shape, const StepRing& ring,
                                      const uint8_t* input, float* scratch,
                                      StepCursor<Clock>& cursor, int tile, float unit) {
  using L = Codes<kFormat>;
  constexpr int kColumns = 32 * L::kMmas, kSums = kScales == 2 ? 2 : 1;
  constexpr float kBase = 0x1.8p23f;
  const int lane = thread_index() % 32, warp = thread_index() / 32, g = lane / 4, t = lane % 4;
  const uint8_t* const x = input + g / 2 * digit_stride(shape.in_dim) + t * (8 * L::kMmas) +
                           shape.first_stage * (kStagePieces * kColumns);
  const int pieces_shift = shape.unit_shift - (kFormat == StepFormat::U4 ? 6 : 5);
  float total[kTiles][2] = {};             // kScales != 0: scaled sums of rows g and g + 8
  int sums[kTiles][4] = {}, zero[4] = {};  // kScales == 0: sums of codes, and of minus zero codes
  cursor.template take<kTiles, 16 / kTiles>(
      ring, shape.n_stages, [&](int stage, const auto& slots) {
        const auto piece = [&](int in_stage) {
          uint32_t b[L::kMmas][2];
          const uint8_t* const from = x + (stage * kStagePieces + in_stage) * kColumns;
          if constexpr (L::kMmas == 2) {
            const uint4 digits = *reinterpret_cast<const uint4*>(from);
            b[0][0] = digits.x;
            b[0][1] = digits.y;
            b[1][0] = digits.z;
            b[1][1] = digits.w;
          } else {
            const uint2 digits = *reinterpret_cast<const uint2*>(from);
            b[0][0] = digits.x;
            b[0][1] = digits.y;
          }
          constexpr int kBits = 0x4b400000;  // the bits of kBase
          int begin[kSums][4] = {{kBits, kBits, kBits, kBits}};
          if constexpr (kSums == 2) begin[1][0] = begin[1][1] = begin[1][2] = begin[1][3] = kBits;
#pragma unroll
          for (int mma = 0; mma < L::kMmas; ++mma) {
            int(&less)[4] = kScales == 0 ? zero : begin[mma % kSums];
            ptx::mma_m16n8k32<false>(less, {L::kZero, L::kUpperZero, L::kZero, L::kUpperZero},
                                     b[mma][0], b[mma][1], less);
          }
          if constexpr (kScales != 0 && L::kUpperHoldsLower) {
#pragma unroll
            for (int i = 0; i < kSums; ++i) begin[i][2] += begin[i][0] - kBits;
          }
#pragma unroll
          for (int j = 0; j < kTiles; ++j) {
            const uint4 w =
                *reinterpret_cast<const uint4*>(slots[j] + in_stage * kPieceBytes + lane * 16);
            [[maybe_unused]] int own[kSums][4];
#pragma unroll
            for (int mma = 0; mma < L::kMmas; ++mma) {
              uint32_t a[4];
              L::get(a, w, mma);
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
                const float low = __int_as_float(own[i][0]), high = __int_as_float(own[i][2]);
                total[j][0] = fmaf(low - kBase, f.x, total[j][0]);
                total[j][1] = fmaf(high - (L::kUpperHoldsLower ? low : kBase), f.y, total[j][1]);
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
  // Adds the digits: the four lanes of a quad add theirs, and two of them keep each row.
  const float digit = __uint_as_float(uint32_t(127 + 8 * t) << 23) * kDigitUnit * unit;
  float* const to = scratch + warp * kStepMaxRows + tile * kTileRows + g;
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    float rows[2] = {total[j][0], total[j][1]};
    if constexpr (kScales == 0) {
      rows[0] = float(sums[j][0] + zero[0]);
      rows[1] = float(sums[j][2] - (L::kUpperHoldsLower ? sums[j][0] : 0) + zero[2]);
    }
    rows[0] *= digit;
    rows[1] *= digit / L::kUpperUnit;
    const bool odd = t & 1;
    float sum = (odd ? rows[1] : rows[0]) + __shfl_xor_sync(~0u, odd ? rows[0] : rows[1], 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (t < 2) to[j * kTileRows + 8 * t] = sum;
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

// `unit`: the factor of the warp's sums. Float weights take all stages, not only `stages`.
template <typename Clock>
__device__ inline void multiply(const StepGemv& gemv, const StepRing& ring, const uint8_t* input,
                                float* scratch, StepCursor<Clock>& cursor, int n_tiles, float unit,
                                const StepStages& stages) {
  const StepShape shape{stages.begin, stages.end - stages.begin,
                        gemv.n_pieces - stages.begin * kStagePieces, gemv.in_dim, gemv.unit_shift};
  const auto codes = [&]<StepFormat kFormat, int kScales>() {
    each_group(n_tiles, [&]<int kTiles>(int tile) {
      multiply_codes<kFormat, kScales, kTiles>(shape, ring, input, scratch, cursor, tile, unit);
    });
  };
  constexpr auto kU4 = StepFormat::U4, kU8 = StepFormat::U8;
  switch (gemv.format) {
    case StepFormat::F16:
      return multiply_floats<false>(shape, ring, input, scratch, cursor, n_tiles);
    case StepFormat::BF16:
      return multiply_floats<true>(shape, ring, input, scratch, cursor, n_tiles);
    case kU4:
      if (gemv.scales_per_piece == 0) return codes.template operator()<kU4, 0>();
      if (gemv.scales_per_piece == 1) return codes.template operator()<kU4, 1>();
      return codes.template operator()<kU4, 2>();
    case kU8:
      if (gemv.scales_per_piece == 0) return codes.template operator()<kU8, 0>();
      return codes.template operator()<kU8, 1>();
  }
}

// Copies to `to`, asynchronously while the block multiplies, the scales of rows that have one each:
// of the block's tiles from first_tile on, and of the pair whose K splits it adds. The scales of a
// gate tile are followed by those of its up tile.
__device__ inline void fetch_row_scales(const StepGemv& gemv, const StepLayer& layer, int phase,
                                        int first_tile, int n_tiles, __half* to) {
  const int halves_log = phase == kGateUp ? 1 : 0, i = thread_index();
  const bool has_pair = gemv.k_split.exists() && gemv.k_split.index == 0;
  if (i >= (n_tiles + int(has_pair)) << (halves_log + 1)) return;
  const int stream = i / 2, in_slice = stream >> halves_log;  // a tile has two times 16 bytes
  const int its_tile = in_slice < n_tiles ? gemv.begin + first_tile + in_slice : gemv.k_split.tile;
  const StepTile tile = step_tile(gemv, phase, its_tile, stream & ((1 << halves_log) - 1));
  const uint8_t* const scales = layer.matrices[first_matrix(phase) + tile.matrix].scales;
  ptx::copy_async_16(ptx::shared_address(to) + 16 * i,
                     scales + int64_t{tile.row_tile} * (kTileRows * 2) + i % 2 * 16);
}
// The place of the scale of a row after fetch_row_scales.
__device__ inline int scale_place(int row) {
  return (row & ~15) + row % 8 * 2 + row / 8 % 2;  // packed_layout.h
}

// The activation of a gate.
template <typename I>
__device__ inline float activated(const StepParams& p, float gate) {
  if constexpr (!I::kIsPlain) {
    if (p.block.activation == Activation::GeluTanh) return precise::gelu_tanh(gate);
    if (p.block.activation == Activation::GeluErf) return precise::gelu_erf(gate);
  }
  return precise::silu(gate);
}

// Element i of a vector of a StepLayer.
__device__ inline float element(const StepParams& p, const void* vector, int i) {
  if (p.vectors_are_bf16) return to_float(static_cast<const __nv_bfloat16*>(vector)[i]);
  return to_float(static_cast<const __half*>(vector)[i]);
}

// The bias of row `row` of a tile of a phase.
__device__ inline float bias_of(const StepParams& p, const StepGemv& gemv, const StepLayer& layer,
                                int phase, int tile, int half_of_pair, int row) {
  const StepTile at = step_tile(gemv, phase, tile, half_of_pair);
  const void* const bias = layer.biases[first_matrix(phase) + at.matrix];
  return bias == nullptr ? 0.0f : element(p, bias, (at.row_tile << gemv.rows_log) + row);
}

__device__ inline float sum_of_warps(const float* scratch, int row) {
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kStepWarps; ++w) sum += scratch[w * kStepMaxRows + row];
  return sum;
}

}  // namespace minfer::cuda
