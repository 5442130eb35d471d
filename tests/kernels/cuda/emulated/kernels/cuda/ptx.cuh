#pragma once

#include "tests/kernels/cuda/emulated/emulator.h"

namespace minfer::cuda::ptx {

inline uint8_t* dynamic_shared() { return emulated::dynamic_shared(); }
inline uint32_t copied_bits(float x) { return std::bit_cast<uint32_t>(x); }
inline float max_or_nan(float a, float b) { return a > b || a != a ? a : b; }
inline float exp2_fast(float x) { return std::exp2(x); }
inline float reciprocal_fast(float x) { return std::abs(x) > 0x1p126f ? 0.0f : 1 / x; }

inline void wait_for_predecessor() {}
inline void let_successor_begin() {}

inline float4 load_read_only(const float4* from) { return *from; }

inline uint32_t shared_address(const void* p) { return emulated::shared_address(p); }
inline void load_matrices(uint32_t (&m)[4], uint32_t row) {
  emulated::load_matrices(dynamic_shared() + row, m, 4);
}
inline void copy_async_16(uint32_t to_shared, const void* from, int n_bytes = 16) {
  emulated::copy_async(dynamic_shared() + to_shared, from, n_bytes, 16 - n_bytes);
}
inline void copy_async_8(uint32_t to_shared, const void* from) {
  emulated::copy_async(dynamic_shared() + to_shared, from, 8, 0);
}
inline void copy_async_4(uint32_t to_shared, const void* from) {
  emulated::copy_async(dynamic_shared() + to_shared, from, 4, 0);
}
inline void copy_async_commit() { emulated::copy_async_commit(); }
template <int kPending>
void copy_async_wait() {
  emulated::copy_async_wait(kPending);
}

inline void mbarrier_init(uint64_t* barrier, int arrivals) {
  emulated::mbarrier_init(barrier, arrivals);
}
inline void mbarrier_init_fence() {}
inline void mbarrier_expect(uint64_t* barrier, int bytes) {
  emulated::mbarrier_expect(barrier, bytes);
}
inline void mbarrier_arrive(uint64_t* barrier) { emulated::mbarrier_arrive(barrier); }
inline void mbarrier_wait(uint64_t* barrier, int parity) {
  emulated::mbarrier_wait(barrier, parity);
}

template <typename T>
void mma_m16n8k16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                  uint32_t b1) {
  const uint32_t a[] = {a0, a1, a2, a3}, b[] = {b0, b1};
  emulated::multiply_16x8x16(d, a, b, emulated::kHalf<T>);
}

}  // namespace minfer::cuda::ptx
