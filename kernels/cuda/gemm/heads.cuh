#pragma once

#include "kernels/cuda/attention/rotate.cuh"
#include "kernels/cuda/gemm/gemm.h"

namespace minfer::cuda {

// The angles of a thread's sums, those of wgmma for rows `row` and row + 8: of two neighbouring
// pairs (i, i + kFusedHeadDim / 2) for each 8 columns, the same in every head.
class HeadAngles {
 public:
  // Asks for them: they come while the last sums are still made.
  __device__ HeadAngles(const GemmArgs& args, int row) {
    const int column = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int64_t angle_row = min(row + r * 8, args.m - 1);
      const float2* const from = args.angles + angle_row * kPairs + column;
#pragma unroll
      for (int j = 0; j < kPairs / 8; ++j) {
        float4& two = two_[r][j];
        asm volatile("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(two.x), "=f"(two.y), "=f"(two.z), "=f"(two.w)
                     : "l"(from + j * 8));
      }
    }
  }

  // Turns the sums of whole heads.
  template <int kSums>
  __device__ void turn(float (&d)[kSums]) const {
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
  static constexpr int kPairs = kFusedHeadDim / 2;  // and sums of a head in a thread

  float4 two_[2][kPairs / 8];
};
struct NoAngles {
  __device__ NoAngles(const GemmArgs&, int) {}
};

}  // namespace minfer::cuda
