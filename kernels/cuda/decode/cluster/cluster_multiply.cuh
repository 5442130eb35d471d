#pragma once

#include "kernels/cuda/decode/cluster/cluster_params.h"
#include "kernels/cuda/decode/persistent/step_operands.cuh"
#include "kernels/cuda/ptx.cuh"

namespace minfer::cuda {

// The sums that the warps have of a row are kClusterWarps adjacent floats.
__device__ inline float sum_of_cluster_warps(const float* sums, int row) {
  static_assert(kClusterWarps == 12);
  const auto* const fours = reinterpret_cast<const float4*>(sums + row * kClusterWarps);
  const float4 a = fours[0], b = fours[1], c = fours[2];
  return ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w)) + ((c.x + c.y) + (c.z + c.w));
}

// Multiplies tiles of 16 rows of U4 by the staged digits of x. Warp w has pieces w, w + 12, ... of
// the rows, at most kOwn, whose digits stay in its registers. Sums of codes times digits of x are
// exact, as in multiply_codes (step_multiply.cuh), and each lane has those of one digit: a sum of a
// piece stays below 2^22 in magnitude, so that added to the bits of a float it gives another float.
//
// kScales: scales of a piece, of one or several of them (1), or of half a piece (2). With kMins the
// codes have no zero code, and the minimum of a scale's columns is multiplied by the sum of x.
template <int kScales, bool kMins, int kOwn, int kTiles>
class ClusterMultiplier {
 public:
  // Takes the warp's digits. All lanes call it.
  __device__ ClusterMultiplier(const ClusterGemv& gemv, const uint8_t* digits) : gemv_(gemv) {
    const uint8_t* const x = digits + digit_of_column(lane_ / 4) * kClusterDigits + lane_ % 4 * 16 +
                             DigitsOfU4::place(lane_);
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      const int piece = warp_ + k * kClusterWarps;
      if (piece >= gemv.n_pieces) break;
      words_[k] = Words(x + piece * kTileColumns, fixed_);
    }
  }

  // Multiplies the block's n_tiles tiles, kTiles at a time, and their sums by `unit`. If kTiles
  // does not divide n_tiles, the last round also reads the memory behind the last tile, and writes
  // sums of no rows behind those of its rows, which are not used.
  __device__ void run(const uint8_t* shared, int n_tiles, float* sums, float unit) const {
    const int g = lane_ / 4, t = lane_ % 4;
    // As in add_digits (step_operands.cuh), for rows g and g + 8.
    const float digit = digit_unit(t);
    const float low_unit = digit * Words::kOfLow, high_unit = digit * Words::kOfHigh;
    float* const to = sums + (g + 8 * t) * kClusterWarps + warp_;
    const uint8_t* codes = shared + gemv_.codes_at + warp_ * kPieceBytes + lane_ * 16;
    const uint8_t* scales = shared + gemv_.scales_at + 4 * g;
    const uint8_t* mins = shared + gemv_.mins_at + 8 * g;
#pragma unroll 1
    for (int first = 0; first < n_tiles; first += kTiles) {
      float total[kTiles][2] = {};
#pragma unroll
      for (int k = 0; k < kOwn; ++k) {
        const int piece = warp_ + k * kClusterWarps;
        if (piece >= gemv_.n_pieces) break;
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
          add_piece(total[j], codes + j * gemv_.code_bytes, scales + j * gemv_.scale_bytes,
                    mins + j * gemv_.min_bytes, k, piece);
        }
      }
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        const float sum = sum_of_quad(total[j][0] * low_unit, total[j][1] * high_unit, t);
        if (t < 2) to[(first + j) * kTileRows * kClusterWarps] = sum * unit;
      }
      codes += kTiles * gemv_.code_bytes;
      scales += kTiles * gemv_.scale_bytes;
      mins += kTiles * gemv_.min_bytes;
    }
  }

 private:
  using Words = WordsOfU4<kScales, kMins>;

  // Adds the sums of rows g and g + 8 of a tile over the warp's k-th piece.
  //   codes         the lane's of the warp's first piece
  //   scales, mins  of the first unit of row g
  __device__ void add_piece(float (&total)[2], const uint8_t* codes, const uint8_t* scales,
                            const uint8_t* mins, int k, int piece) const {
    constexpr int kScaleBytes = kTileRows * 2, kMinBytes = kTileRows * 4;
    const int unit = kScales == 2 ? 2 * piece : piece >> gemv_.pieces_shift;
    words_[k].add(total[0], total[1],
                  *reinterpret_cast<const uint4*>(codes + k * kClusterWarps * kPieceBytes),
                  reinterpret_cast<const __half2*>(scales + unit * kScaleBytes),
                  reinterpret_cast<const float2*>(mins + unit * kMinBytes), fixed_);
  }

  const ClusterGemv& gemv_;
  const int lane_ = int(threadIdx.x) % 32, warp_ = ptx::warp_index();
  const FixedOperands fixed_ = Words::fixed();
  Words words_[kOwn];
};

}  // namespace minfer::cuda
