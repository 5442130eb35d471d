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

}  // namespace minfer::cuda::ptx
