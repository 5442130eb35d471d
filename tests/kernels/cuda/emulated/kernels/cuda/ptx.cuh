#pragma once

#include "tests/kernels/cuda/emulated/emulator.h"

namespace minfer::cuda::ptx {

template <int kAlignment = 1024>
uint8_t* dynamic_shared() {
  return emulated::dynamic_shared();
}
template <typename T>
T& static_shared() {
  return *reinterpret_cast<T*>(emulated::static_shared(sizeof(T)));
}
inline int read_thread_index() { return emulated::thread_index(); }
inline int warp_index() { return emulated::thread_index() / 32; }
// Clocks that move on by one with each reading. No deadline passes: the emulator itself sees a wait
// that never ends.
inline uint32_t read_clock() { return uint32_t(emulated::count_readings()); }
inline uint64_t global_timer() { return emulated::count_readings(); }
inline void before_next_try() { emulated::before_next_try(); }
inline uint32_t copied_bits(float x) { return std::bit_cast<uint32_t>(x); }
template <uint32_t kMask>
uint32_t mask_or(uint32_t word, uint32_t pattern) {
  return (word & kMask) | pattern;
}
template <uint32_t kMask>
uint32_t inverted_and(uint32_t word) {
  return ~(word & kMask);
}
inline int signed_byte(uint32_t word, int i) { return int8_t(word >> (8 * i)); }
template <bool kUpper>
int dot_of_two(uint32_t halves, uint32_t word, int sum) {
  const int first = kUpper ? 2 : 0;
  return sum + int16_t(halves) * signed_byte(word, first) +
         int16_t(halves >> 16) * signed_byte(word, first + 1);
}
inline float max_or_nan(float a, float b) { return a > b || a != a ? a : b; }
inline float exp2_fast(float x) { return std::exp2(x); }
inline float reciprocal_fast(float x) { return std::abs(x) > 0x1p126f ? 0.0f : 1 / x; }

inline int round_to_s8(float x) {
  return x == x ? static_cast<int>(std::clamp(std::nearbyint(x), -128.0f, 127.0f)) : 0;
}

inline void wait_for_predecessor() {}
inline void let_successor_begin() {}

inline float4 load_read_only(const float4* from) { return *from; }
inline uint4 load_16_or_zero(bool loads, const void* from) {
  return loads ? *static_cast<const uint4*>(from) : uint4{};
}
template <int kAt = 0>
void load_word(uint64_t& low, uint64_t& high, const uint4* from) {
  const uint4 word = from[kAt];
  low = uint64_t{word.y} << 32 | word.x;
  high = uint64_t{word.w} << 32 | word.z;
}
template <int kAt>
void load_word_if(uint32_t reads, uint64_t& low, uint64_t& high, const uint4* from) {
  if (reads) load_word<kAt>(low, high, from);
}
inline void store_word(uint4* to, uint64_t low, uint64_t high) {
  emulated::store_word(to,
                       {uint32_t(low), uint32_t(low >> 32), uint32_t(high), uint32_t(high >> 32)});
}
inline void load_word_of_peer(uint64_t& low, uint64_t& high, const uint4* from) {
  load_word<0>(low, high, from);
}
inline void store_word_to_peer(uint4* to, uint64_t low, uint64_t high) {
  store_word(to, low, high);
}
inline unsigned count_arrival(unsigned* counter) { return (*counter)++; }
inline void count_arrival_at_peer(uint32_t* counter) { ++*counter; }
inline uint32_t load_from_peer(const uint32_t* from) {
  return *static_cast<const volatile uint32_t*>(from);
}
inline void prefetch_l2(const void* from, int n_bytes) { emulated::prefetch(from, n_bytes); }

inline uint32_t shared_address(const void* p) { return emulated::shared_address(p); }
inline void load_matrices(uint32_t (&m)[4], uint32_t row) {
  emulated::load_matrices(dynamic_shared() + row, m, 4);
}
inline void load_matrices_transposed(uint32_t (&m)[4], uint32_t row) {
  emulated::load_matrices(dynamic_shared() + row, m, 4, /*transposed=*/true);
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
inline void copy_async_arrive(uint64_t* barrier) { emulated::copy_async_arrive(barrier); }
inline void mbarrier_wait(uint64_t* barrier, int parity) {
  emulated::mbarrier_wait(barrier, parity);
}
inline bool mbarrier_is_complete(uint32_t barrier, int parity) {
  return emulated::mbarrier_is_complete(barrier, parity);
}
inline int mbarrier_is_complete_or(int is_so, uint32_t barrier, int parity) {
  return is_so || mbarrier_is_complete(barrier, parity);
}
inline void store_shared_if(bool stores, uint32_t to, int x) {
  if (stores) *reinterpret_cast<int*>(dynamic_shared() + to) = x;
}
inline void mbarrier_arrive_if(bool condition, uint32_t barrier) {
  if (condition) mbarrier_arrive(reinterpret_cast<uint64_t*>(dynamic_shared() + barrier));
}
template <int kId, int kThreads>
void named_barrier() {
  emulated::named_barrier(kId, kThreads);
}

inline void cluster_barrier() { emulated::cluster_barrier(); }
inline uint32_t shared_address_in(const void* p, int rank) {
  return emulated::shared_address_in(p, rank);
}
inline void store_to_block_if(bool stores, uint32_t to, const float (&x)[4], uint32_t barrier) {
  if (stores) emulated::store_to_block(to, x, barrier);
}
inline bool mbarrier_is_complete_in_cluster(uint32_t barrier, int parity) {
  return mbarrier_is_complete(barrier, parity);
}

inline uint64_t evict_first_policy() { return 0; }
inline void bulk_copy(void* to_shared, const void* from, int n_bytes, uint64_t* barrier,
                      uint64_t /*policy*/ = 0) {
  emulated::bulk_copy(to_shared, from, n_bytes, barrier);
}

template <typename T>
void mma_m16n8k16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                  uint32_t b1) {
  const uint32_t a[] = {a0, a1, a2, a3}, b[] = {b0, b1};
  emulated::multiply_16x8x16(d, a, b, emulated::kHalf<T>);
}
template <bool kUnsigned>
void mma_m16n8k32(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                  const int (&c)[4]) {
  const uint32_t b[] = {b0, b1};
  emulated::multiply_16x8x32(d, a, b, c, kUnsigned);
}
template <bool kUnsigned>
void mma_m16n8k16(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t b, const int (&c)[4]) {
  mma_m16n8k32<kUnsigned>(d, {a0, a1, 0, 0}, b, 0, c);
}

}  // namespace minfer::cuda::ptx
