#pragma once

#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/warpgroup.cuh"

namespace minfer::cuda::attention {

inline uint32_t bits_of(__half2 x) { return *reinterpret_cast<const uint32_t*>(&x); }
inline uint32_t pack_halves(float low, float high) {
  const auto bits = [](float x) { return uint32_t{__half_as_ushort(__float2half_rn(x))}; };
  return bits(low) | bits(high) << 16;
}

inline void mma_16x8x16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                        uint32_t b0, uint32_t b1) {
  ptx::mma_m16n8k16<__half>(d, a0, a1, a2, a3, b0, b1);
}

// Lane 4 g + t has elements 2 t, 2 t + 1 of row g of the matrix, then of the transposed one.
inline uint32_t transpose_matrix(uint32_t m) {
  const int lane = emulated::thread_index() % 32, g = lane / 4, t = lane % 4;
  uint32_t halves[2];
  for (int i = 0; i < 2; ++i) {
    // All lanes call each exchange: column g of rows 2 t and 2 t + 1.
    const uint32_t word = __shfl_sync(~0u, m, 4 * (2 * t + i) + g / 2);
    halves[i] = word >> (g % 2 * 16) & 0xFFFF;
  }
  return halves[0] | halves[1] << 16;
}

inline void copy_box(void* to_shared, const CUtensorMap* map, uint64_t* barrier, int x, int y,
                     int z) {
  emulated::tensor_load(to_shared, map, barrier, x, y, z, /*to_both=*/false);
}
inline void fence_for_wgmma() {}
inline void keep_in_front(float, const void*) {}

// Where a tile begins, in units of 16 bytes, and from bit 32 on `lead`.
inline uint64_t operand(const void* p, uint32_t lead = 16) {
  return emulated::shared_address(p) / 16 | uint64_t{lead} << 32;
}
inline void wgmma_scores(float (&d)[64], uint64_t a, uint64_t b, int accumulate) {
  emulated::wgmma(d, 64, {.tile = uint32_t(a)}, {.tile = uint32_t(b)}, accumulate != 0,
                  emulated::Half::F16);
}
template <int kSums>
void wgmma_values(float (&d)[kSums], const uint32_t* a, uint64_t b) {
  emulated::wgmma(d, kSums, {.registers = a}, {.tile = uint32_t(b), .lead = int(b >> 32)}, true,
                  emulated::Half::F16);
}

template <int kThreads>
void barrier_sync(int id) {
  emulated::named_barrier(id, kThreads);
}
template <int kThreads>
void barrier_arrive(int id) {
  emulated::named_barrier_arrive(id, kThreads);
}

}  // namespace minfer::cuda::attention
