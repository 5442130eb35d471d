#pragma once

#include "kernels/cuda/decode/persistent/step_gemv.cuh"
#include "kernels/cuda/decode/persistent/step_input.cuh"
#include "kernels/cuda/decode/persistent/step_slice.cuh"
#include "kernels/cuda/decode/persistent/step_softmax.cuh"
#include "kernels/cuda/decode/persistent/step_values.cuh"

// Attention over the codes of an int8 cache. q . k runs on the integer tensor cores, with q in
// digits like the input of a linear layer with codes. weights . v runs on the F16 tensor cores for
// one head (step_values.cuh), and in f32 for several.
namespace minfer::cuda {

// q of the block's heads in shared memory, in 23-bit fixed point: signed 8-bit digits
// [heads][4][head_dim], of which the last are zeros, then the unit of each head, then, for several
// heads, the attention weights [heads][16] of each warp.
struct QueryCodes {
  uint8_t* digits;  // null: the cache is not multiplied as codes

  __host__ __device__ static int unit_at(int heads, int head_dim) { return heads * 4 * head_dim; }
  __host__ __device__ static int weights_at(int heads, int head_dim) {
    return unit_at(heads, head_dim) + heads * 4;
  }
  __host__ __device__ static int bytes(int heads, int head_dim) {
    return weights_at(heads, head_dim) + (heads == 1 ? 0 : kStepWarps * heads * 16 * 4);
  }

  // Called by a warp: it writes heads first, first + the warps without a new row, ..., zeros for
  // those that the block does not have.
  template <typename I>
  __device__ void make(const float (*q)[I::kHeadDim], const StepAttention& a, int first) const {
    constexpr int kWords = (I::kHeadDim + 127) / 128;  // of a lane, four columns each
    const int lane = thread_index() % 32;
    for (int head = first; head < I::kQueries; head += kStepWarps - 2 * I::kTokens) {
      uint32_t bits[kWords][4];
      LargestMagnitude top;
#pragma unroll
      for (int k = 0; k < kWords; ++k) {
        const int column = 4 * lane + 128 * k;
        const bool has_columns = column < a.head_dim && head < I::kTokens * a.heads_per_block;
        const float4 x =
            has_columns ? *reinterpret_cast<const float4*>(q[head] + column) : float4{0, 0, 0, 0};
        const float four[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) bits[k][i] = __float_as_uint(four[i]);
        top.add(bits[k]);
      }
      const FixedPoint fixed = top.fixed_point();
      if (lane == 0) {
        reinterpret_cast<float*>(digits + unit_at(I::kQueries, a.head_dim))[head] =
            fixed.unit * kDigitUnit;
      }
#pragma unroll
      for (int k = 0; k < kWords; ++k) {
        const int column = 4 * lane + 128 * k;
        if (column >= a.head_dim) continue;
        uint32_t planes[kDigits];
        fixed.digits(planes, bits[k], /*swaps=*/false);
        const auto store = [&](int i, uint32_t four) {
          *reinterpret_cast<uint32_t*>(digits + (head * 4 + i) * a.head_dim + column) = four;
        };
#pragma unroll
        for (int i = 0; i < kDigits; ++i) store(i, planes[i]);
        store(kDigits, 0);
      }
    }
  }
};

// Takes all stages of the cache, 16 rows of a warp at a time. Columns 0 to 3 and 4 to 7 of the B
// operand are the digits of two heads, or twice those of a single head. The 32 terms of an MMA are
// two words of each of four lanes; both operands have them in the same order, whichever that is.
// Sums of (code - 128) times digit are exact: codes of the cache are 1 to 255, and 127 * 128 *
// head_dim stays below 2^22 (multiply_codes). `memory`: the warp's own, for the output of a single
// head.
template <typename I, typename Clock>
__device__ inline void attend_codes(OnlineSoftmax<I>& softmax, const StepAttention& a,
                                    const CacheStages& cache, const QueryCodes& query,
                                    float* memory, const StepRing& ring,
                                    StepCursor<Clock>& cursor) {
  constexpr int kQueries = I::kQueries, kSets = (kQueries + 1) / 2, kMostChunks = I::kHeadDim / 64;
  constexpr bool kHasCodeValues = kQueries == 1 && I::kHeadDim <= CodeValues::kMostHeadDim;
  constexpr uint32_t kZero = 0x80808080;
  const int lane = thread_index() % 32, warp = warp_index(), g = lane / 4, t = lane % 4;
  const int n_chunks = a.head_dim / 64;
  const float* const units =
      reinterpret_cast<const float*>(query.digits + query.unit_at(kQueries, a.head_dim));
  float* const weights =
      reinterpret_cast<float*>(query.digits + query.weights_at(kQueries, a.head_dim)) +
      warp * kQueries * 16;
  uint4 b[kSets][kMostChunks] = {};
  int begin[kSets][4];
  float unit[kSets];  // the factor of the lane's head and digits
#pragma unroll
  for (int set = 0; set < kSets; ++set) {
    const int plane = kQueries == 1 ? g % 4 : set * 8 + g;
    const int head = kQueries == 1 ? 0 : 2 * set + t / 2;
    unit[set] = units[head] * (t % 2 == 0 ? 1.0f : 65536.0f);
#pragma unroll
    for (int i = 0; i < 4; ++i) begin[set][i] = kCodesBaseBits;
#pragma unroll
    for (int c = 0; c < kMostChunks; ++c) {
      if (c >= n_chunks) break;
      const uint4 x =
          *reinterpret_cast<const uint4*>(query.digits + plane * a.head_dim + c * 64 + t * 16);
      b[set][c] = x;
      ptx::mma_m16n8k32<false>(begin[set], {kZero, kZero, kZero, kZero}, x.x, x.y, begin[set]);
      ptx::mma_m16n8k32<false>(begin[set], {kZero, kZero, kZero, kZero}, x.z, x.w, begin[set]);
    }
  }
  const int team = lane >> a.lanes_log, at = (lane & (a.lanes() - 1)) * 8;
  const int stage_tiles = cache.stage_rows / 16;
  CodeValues values;
  cursor.template take<4>(
      ring, 2 * cache.n_stages, [&](int step, const uint8_t* const(&stages)[4]) {
#pragma unroll 1
        for (int tile = warp; tile < 2 * stage_tiles; tile += kStepWarps) {
          const int pair = tile >= stage_tiles ? 1 : 0, first = (tile - pair * stage_tiles) * 16;
          const int n_rows = cache.rows_of(2 * step + pair) - first;
          if (n_rows <= 0) continue;
          const uint8_t* const key_stage = pair == 0 ? stages[0] : stages[2];
          const uint8_t* const value_stage = pair == 0 ? stages[1] : stages[3];
          const int skipped = cache.skipped(2 * step + pair);
          const auto scales_of = [&](const uint8_t* stage) {
            return reinterpret_cast<const float*>(stage + kStageBytes) + skipped + first;
          };
          const uint8_t* const rows = key_stage + (first + g) * a.head_dim + t * 16;
          int own[kSets][4];
#pragma unroll
          for (int set = 0; set < kSets; ++set)
#pragma unroll
            for (int i = 0; i < 4; ++i) own[set][i] = begin[set][i];
#pragma unroll
          for (int c = 0; c < kMostChunks; ++c) {
            if (c >= n_chunks) break;
            const uint4 low = *reinterpret_cast<const uint4*>(rows + c * 64);
            const uint4 high = *reinterpret_cast<const uint4*>(rows + 8 * a.head_dim + c * 64);
#pragma unroll
            for (int set = 0; set < kSets; ++set) {
              const uint4& x = b[set][c];
              ptx::mma_m16n8k32<true>(own[set], {low.x, high.x, low.y, high.y}, x.x, x.y, own[set]);
              ptx::mma_m16n8k32<true>(own[set], {low.z, high.z, low.w, high.w}, x.z, x.w, own[set]);
            }
          }
          const float* const key_scales = scales_of(key_stage);
          const bool has_row[2] = {g < n_rows, g + 8 < n_rows};
          const float scale[2] = {key_scales[g], key_scales[g + 8]};
          float top[kQueries];
          float score[kSets][2];
#pragma unroll
          for (int set = 0; set < kSets; ++set) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
              const float first_digit = __int_as_float(own[set][2 * r]) - kCodesBase;
              const float second_digit = __int_as_float(own[set][2 * r + 1]) - kCodesBase;
              float sum = fmaf(256.0f, second_digit, first_digit) * unit[set];
              sum += __shfl_xor_sync(~0u, sum, 1);
              score[set][r] = has_row[r] ? capped<I>(sum * scale[r], a) : -INFINITY;
            }
            float most = fmaxf(score[set][0], score[set][1]);
#pragma unroll
            for (int d = 4; d <= 16; d *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
            if constexpr (kQueries == 1) {
              top[0] = most;
            } else {
              const float other = __shfl_xor_sync(~0u, most, 2);
              top[2 * set] = t < 2 ? most : other;
              top[2 * set + 1] = t < 2 ? other : most;
            }
          }
          if constexpr (kHasCodeValues) {
            const float before = softmax.max[0], base = softmax.raise_max(0, top[0]);
            const float factor = ptx::exp2_fast(before - base);
            const float* const value_scales = scales_of(value_stage);
            const float value_scale[2] = {has_row[0] ? value_scales[g] : 0.0f,
                                          has_row[1] ? value_scales[g + 8] : 0.0f};
            const float weight[2] = {ptx::exp2_fast(score[0][0] - base),
                                     ptx::exp2_fast(score[0][1] - base)};
            softmax.sum[0] = fmaf(softmax.sum[0], factor, weight[0] + weight[1]);
            values.raise(factor, value_scale);
            values.add(ptx::shared_address(value_stage + first * a.head_dim), a.head_dim, weight,
                       value_scale);
          } else {
#pragma unroll
            for (int h = 0; h < kQueries; ++h) top[h] = softmax.raise(h, top[h]);
#pragma unroll
            for (int set = 0; set < kSets; ++set) {
              const float base = t < 2 ? top[2 * set] : top[kQueries == 1 ? 0 : 2 * set + 1];
              if (t % 2 != 0 || t / 2 >= kQueries) continue;
#pragma unroll
              for (int r = 0; r < 2; ++r) {
                weights[(2 * set + t / 2) * 16 + g + 8 * r] = ptx::exp2_fast(score[set][r] - base);
              }
            }
            __syncwarp();
            // Missing rows have weight 0, and any bytes in their places are valid codes.
            const auto add_rows = [&]<int kTeams>() {
#pragma unroll
              for (int row = team; row < team + 16; row += kTeams) {
                const CacheEight v = load_eight<true>(a, value_stage, first + row, at, skipped);
                float eight[8], weight[kQueries];
                unpack<true>(eight, v);
                const float value_scale = row < n_rows ? v.scale : 0.0f;
#pragma unroll
                for (int h = 0; h < kQueries; ++h) {
                  weight[h] = weights[h * 16 + row];
                  softmax.sum[h] += weight[h];
                  weight[h] *= value_scale;
                }
                softmax.add(weight, eight);
              }
            };
            if (I::kHeadDim > 128 && a.lanes() == 32) {
              add_rows.template operator()<1>();
            } else if (a.lanes() == 16) {
              add_rows.template operator()<2>();
            } else {
              add_rows.template operator()<4>();
            }
            __syncwarp();  // the next weights overwrite these
          }
        }
      });
  if constexpr (kHasCodeValues) {  // the first team gets the sums of all rows
    values.store(memory, a.head_dim);
    float sum = softmax.sum[0];
#pragma unroll
    for (int d = 4; d <= 16; d *= 2) sum += __shfl_xor_sync(~0u, sum, d);
    softmax.sum[0] = team == 0 ? sum : 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) softmax.out[0][i] = team == 0 ? memory[at + i] : 0.0f;
  }
}

}  // namespace minfer::cuda
