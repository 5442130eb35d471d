#pragma once

#include "kernels/cuda/attention/tensor_core.cuh"
#include "kernels/cuda/decode/persistent/step_params.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/ptx.cuh"

namespace minfer::cuda {

// Attention weights of one head times the values of an int8 cache, on the F16 tensor cores. A code
// extended to 16 bits is the half code * 2^-24, so it needs no conversion; a weight times the scale
// of its row is the sum of two halves. Products and sums are f32. The zero code, 128, is not
// subtracted from the codes but from the sums at the end. A warp takes 16 rows at a time; lane 4 g
// + t has the weights of rows g and g + 8.
//
// The instruction sums over rows, but neighbours in memory are elements of one row: ldmatrix takes
// two codes as one half and transposes them. To spread its eight rows over the banks (with heads of
// 64, two rows meet in the same banks), row i puts its piece j ^ i, of 16 codes, in register j.
// Column i of the B operand has the weights of rows i and i + 8 and zeros: so each column of a sum
// stays with the same piece of the same rows, and store() adds the columns that belong together.
class CodeValues {
 public:
  static constexpr int kMostHeadDim = 128;

  // Rescales all sums by `factor`, as online softmax does when its maximum rises, and changes their
  // unit if the scales of these rows ask for a larger one. Missing rows have scale 0.
  __device__ void raise(float factor, const float (&scale)[2]) {
    const uint32_t top =
        __reduce_max_sync(~0u, max(__float_as_uint(scale[0]), __float_as_uint(scale[1])));
    const uint32_t exponent = min(max(exponent_, (top >> 23) + 1), 254u);
    if (factor == 1 && exponent == exponent_) return;
    const uint32_t down = exponent - exponent_;
    factor *= down > 126 ? 0.0f : __uint_as_float((127 - down) << 23);
    exponent_ = exponent;
    weights_ *= factor;
#pragma unroll
    for (auto& piece : sums_)
#pragma unroll
      for (float& sum : piece) sum *= factor;
  }

  // Adds 16 rows of codes at shared address `rows`; the lane has the weights and scales of two.
  __device__ void add(uint32_t rows, int head_dim, const float (&weight)[2],
                      const float (&scale)[2]) {
    const int lane = int(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
    const uint32_t own_half = t != g / 2 ? 0 : g % 2 == 0 ? 0x0000ffffu : 0xffff0000u;
    const float to_units = __uint_as_float((254 + kRoom - exponent_) << 23);
    uint32_t high[2], low[2];  // of both rows
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float x = scale[r] == 0 ? 0.0f : weight[r] * scale[r] * to_units;
      const __half2 first = __float2half2_rn(x), rest = __float2half2_rn(x - __low2float(first));
      weights_ += __low2float(first) + __low2float(rest);
      high[r] = attention::bits_of(first) & own_half;
      low[r] = attention::bits_of(rest) & own_half;
    }
    const uint32_t row = lane % 16, row_at = rows + row * uint32_t(head_dim);
    const uint32_t piece_at = (lane / 16 ^ row) * 16 & uint32_t(head_dim - 1);
#pragma unroll
    for (int j = 0; j < kPieces; j += 2) {
      if (j * 16 >= head_dim) break;
      uint32_t m[4];  // rows 0 to 7 and 8 to 15 of pieces j ^ row, and of j + 1 ^ row
      ptx::load_matrices_transposed(m, row_at + (piece_at ^ uint32_t(j * 16)));
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const uint32_t even[2] = {m[2 * k] & 0x00ff00ff, m[2 * k + 1] & 0x00ff00ff};
        const uint32_t odd[2] = {__byte_perm(m[2 * k], 0, 0x4341),
                                 __byte_perm(m[2 * k + 1], 0, 0x4341)};
        float(&to)[4] = sums_[j + k];
        ptx::mma_m16n8k16<__half>(to, even[0], odd[0], even[1], odd[1], high[0], high[1]);
        ptx::mma_m16n8k16<__half>(to, even[0], odd[0], even[1], odd[1], low[0], low[1]);
      }
    }
  }

  // Writes the output of the warp's rows to out[head_dim], in shared memory.
  __device__ void store(float* out, int head_dim) {
    const int lane = int(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int d = 4; d <= 16; d *= 2) weights_ += __shfl_xor_sync(~0u, weights_, d);
    const float unit = __uint_as_float(exponent_ << 23) * (1.0f / float(1 << kRoom));
    const bool has_eight = head_dim == 128;
#pragma unroll
    for (int k = 0; k < 2; ++k) {  // elements 2 g and 2 g + 1 of a piece
      // own[j] is piece j ^ 2 t of columns 2 t and 2 t + 1, which are in sums j and j ^ 1. The lane
      // ends with pieces 2 t + i: it has them in own[i], the lane 1 away in own[i ^ 2], and the
      // lane 2 away in own[i ^ 4].
      float own[kPieces];
#pragma unroll
      for (int j = 0; j < kPieces; ++j) own[j] = sums_[j][2 * k] + sums_[j ^ 1][2 * k + 1];
#pragma unroll
      for (const int j : {0, 1, 4, 5}) own[j] += __shfl_xor_sync(~0u, own[j ^ 2], 1);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float other = __shfl_xor_sync(~0u, has_eight ? own[i ^ 4] : own[i], 2);
        const float code_sum = (own[i] + other) * 0x1p24f;
        const int piece = 2 * t + i;
        if (piece * 16 >= head_dim) continue;
        out[piece * 16 + 2 * g + k] = fmaf(-128.0f, weights_, code_sum) * unit;
      }
    }
    __syncwarp();
  }

 private:
  static constexpr int kPieces = kMostHeadDim / 16;
  // Scaled weights reach 2^12, so that even the second halves of small ones are above the smallest
  // half.
  static constexpr uint32_t kRoom = 12;

  float sums_[kPieces][4] = {};
  float weights_ = 0;       // sum of this lane's weights, scaled and rounded to two halves
  uint32_t exponent_ = 32;  // biased, of a power of two above all scales so far
};

}  // namespace minfer::cuda
