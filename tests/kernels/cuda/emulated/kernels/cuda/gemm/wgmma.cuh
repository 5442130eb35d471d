#pragma once

#include "kernels/cuda/warpgroup.cuh"

namespace minfer::cuda::ptx {

// The descriptor has only the begin of the tile, in units of 16 bytes.
inline uint64_t wgmma_tile(const void* tile) { return emulated::shared_address(tile) / 16; }
template <typename Sum, int kSums, typename T>
void wgmma(Sum (&d)[kSums], uint64_t a, uint64_t b, bool accumulate, T) {
  static_assert(kSums % 4 == 0 && kSums <= 128);
  emulated::wgmma(d, kSums, {.tile = a}, {.tile = b}, accumulate, emulated::kHalf<T>);
}

template <int kSums, typename T>
void wgmma(float (&d)[kSums], const uint32_t (&a)[4], uint64_t b, bool accumulate, T) {
  emulated::wgmma(d, kSums, {.registers = a}, {.tile = b}, accumulate, emulated::kHalf<T>);
}

}  // namespace minfer::cuda::ptx
