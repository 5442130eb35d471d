#pragma once

#include <cstdint>

#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/hgemm_tile.cuh"
#include "kernels/cuda/gemm/tma.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
namespace minfer::cuda {

// Gives the accumulators of a warpgroup as floats. Float accumulators stay as they are; int32
// accumulators of int8 codes are multiplied by the scales of their row of x and their row of w. All
// threads of the warpgroup call begin() and then of(), once for each tile.
template <typename Operand, typename Tile, HgemmKind kKind>
class FloatSums {
 public:
  using Sum = float;

  __device__ FloatSums(typename Tile::Shared&, const GemmArgs&, int) {}
  template <typename Sums>
  __device__ void begin(Sums&, int, int, int) {}
  template <typename Sums>
  __device__ Sums& of(Sums& sums) {
    return sums;
  }
};

// For int8 codes. The scales are copied to shared memory during the K loop.
template <typename Tile, HgemmKind kKind>
class FloatSums<int8_t, Tile, kKind> {
  static constexpr int kRowBlocks = Tile::kRowBlocks, kRows = 64 * kRowBlocks;
  static constexpr int kSums = Tile::kN / 2, kOut = Tile::template kOut<kKind>;
  static_assert(kRows <= 128);

 public:
  using Sum = int;

  __device__ FloatSums(typename Tile::Shared& s, const GemmArgs& args, int consumer)
      : x_scales_(s.x_scales[consumer]),
        w_scales_(s.w_scales[consumer]),
        args_(args),
        barrier_(1 + consumer) {}

  // Starts copying the scales of rows from first_row on and of columns from `column` on of a part;
  // past the end, the last scale is repeated. Zeroing the accumulators here ends the life of their
  // old values: beside the floats made of them, they would take more registers than there are.
  __device__ void begin(int (&sums)[kRowBlocks][kSums], int part, int first_row, int column) {
#pragma unroll
    for (auto& of_block : sums) {
#pragma unroll
      for (int& sum : of_block) sum = 0;
    }
    const int thread = static_cast<int>(threadIdx.x) % 128;
#pragma unroll
    for (int i = thread; i < Tile::kN; i += 128) {
      const GemmArgs::Part& of = args_.part[kKind == HgemmKind::SwiGlu ? i / kOut : part];
      ptx::copy_async_4(ptx::shared_address(w_scales_ + i),
                        of.w_scales + min(column + i % kOut, of.n - 1));
    }
    if (thread < kRows) {
      ptx::copy_async_4(ptx::shared_address(x_scales_ + thread),
                        args_.x_scales + min(first_row + thread, args_.m - 1));
    }
    ptx::copy_async_commit();
  }

  __device__ auto& of(const int (&sums)[kRowBlocks][kSums]) {
    ptx::copy_async_wait<0>();
    ptx::named_barrier(barrier_, 128);
    const int warp = static_cast<int>(threadIdx.x) % 128 / 32,
              lane = static_cast<int>(threadIdx.x) % 32;
    float of_row[kRowBlocks][2];
#pragma unroll
    for (int b = 0; b < kRowBlocks; ++b) {
#pragma unroll
      for (int h = 0; h < 2; ++h) of_row[b][h] = x_scales_[b * 64 + warp * 16 + lane / 4 + h * 8];
    }
    const float* const of_column = w_scales_ + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < kSums; j += 4) {
      const float2 two = *reinterpret_cast<const float2*>(of_column + j * 2);
#pragma unroll
      for (int b = 0; b < kRowBlocks; ++b) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int at = j + 2 * h;
          d_[b][at] = static_cast<float>(sums[b][at]) * of_row[b][h] * two.x;
          d_[b][at + 1] = static_cast<float>(sums[b][at + 1]) * of_row[b][h] * two.y;
        }
      }
    }
    return d_;
  }

 private:
  float d_[kRowBlocks][kSums];
  float (&x_scales_)[kRows];
  float (&w_scales_)[Tile::kN];
  const GemmArgs& args_;
  int barrier_;
};

}  // namespace minfer::cuda
#endif
