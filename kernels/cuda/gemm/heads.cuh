#pragma once

#include "kernels/cuda/attention/rotate.cuh"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/reduce.cuh"

// What the GEMM of q, k and v does in its epilogue (GemmArgs::angles): it norms and rotates the
// heads of q and k.
namespace minfer::cuda {

// The angles of a thread's accumulators, which wgmma places in rows `row` and row + 8. In each 8
// columns, a thread has two adjacent ones, so two adjacent pairs (i, i + kFusedHeadDim / 2). The
// angles are the same in every head.
class HeadAngles {
 public:
  // Issues the loads, which overlap the last wgmma instructions. It loads them for v too, which
  // does not use them.
  __device__ HeadAngles(const GemmArgs& args, int row) {
    const int column = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int64_t angle_row = min(row + r * 8, args.m - 1);
      const float2* const from = args.angles + angle_row * kPairs + column;
#pragma unroll
      for (int j = 0; j < kPairs / 8; ++j) {
        two_[r][j] = ptx::load_read_only(reinterpret_cast<const float4*>(from + j * 8));
      }
    }
  }

  // Rotates accumulators of whole heads.
  template <int kSums>
  __device__ void rotate(float (&d)[kSums]) const {
    static_assert(kSums % kPairs == 0);
#pragma unroll
    for (int head = 0; head < kSums; head += kPairs) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int j = 0; j < kPairs / 8; ++j) {
          float* const low = d + head + j * 4 + r * 2;
          float* const high = low + kPairs / 2;
          const float4 two = two_[r][j];
          const float2 first = attention::rotated(low[0], high[0], {two.x, two.y});
          const float2 second = attention::rotated(low[1], high[1], {two.z, two.w});
          low[0] = first.x;
          high[0] = first.y;
          low[1] = second.x;
          high[1] = second.y;
        }
      }
    }
  }

 private:
  static constexpr int kPairs = kFusedHeadDim / 2;  // also a thread's accumulators per head

  float4 two_[2][kPairs / 8];
};
struct NoAngles {
  __device__ NoAngles(const GemmArgs&, int) {}
};

// Rounds the sums to T, as if a separate launch read them from memory.
template <typename T, int kSums>
__device__ inline void round_sums(float (&d)[kSums]) {
#pragma unroll
  for (float& sum : d) sum = to_float(from_float<T>(sum));
}

// The RMSNorm of whole heads, whose accumulators are where HeadAngles expects them, rounded to T.
// The order of the sums is that of short_norm_kernel, so that the bits are the same.
template <typename T, int kSums>
__device__ inline void norm_heads(float (&d)[kSums], const void* weight, float eps) {
  constexpr int kOfHead = kFusedHeadDim / 2, kHeads = kSums / kOfHead, kChunks = kFusedHeadDim / 8;
  static_assert(kSums % kOfHead == 0);
  float scale[kHeads][2];
#pragma unroll
  for (int head = 0; head < kHeads; ++head) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float* const first = d + head * kOfHead + r * 2;
      float sums[kChunks];
#pragma unroll
      for (int j = 0; j < kChunks; ++j) sums[j] = sum_of_squares(first[j * 4], first[j * 4 + 1]);
      // Four calls with constant distances: in a loop over the distance, the compiler keeps `sums`
      // in local memory.
      const auto add_halves = [&]<int kDistance>() {
#pragma unroll
        for (int j = 0; j < kDistance; ++j) sums[j] += sums[j + kDistance];
      };
      static_assert(kChunks == 16);
      add_halves.template operator()<8>();
      add_halves.template operator()<4>();
      add_halves.template operator()<2>();
      add_halves.template operator()<1>();
      float sum = sums[0] + __shfl_xor_sync(~0u, sums[0], 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      scale[head][r] = rsqrtf(sum / float{kFusedHeadDim} + eps);
    }
  }
  const auto* const weights = static_cast<const Vec<T, 2>*>(weight) + threadIdx.x % 4;
#pragma unroll
  for (int j = 0; j < kChunks; ++j) {
    const Vec<T, 2> two = weights[j * 4];
#pragma unroll
    for (int head = 0; head < kHeads; ++head) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& x = d[head * kOfHead + j * 4 + i];
        const float normed = fmaf(x * scale[head][i / 2], to_float(two[i % 2]), 0.0f);
        x = to_float(from_float<T>(normed));
      }
    }
  }
}

}  // namespace minfer::cuda
