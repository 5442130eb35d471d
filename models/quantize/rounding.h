#pragma once

namespace minfer {

// T is float or a vector of floats. The functions change x in place: none can return a vector that
// is wider than the registers of the baseline instruction set.
//
// Rounds x to the nearest integer, ties to even; |x| < 2^22.
template <typename T>
[[gnu::always_inline]] inline void round_all(T& x) {
  constexpr float kOneAndAHalf23 = 12582912;  // 1.5 * 2^23: the last bit of the sum is worth 1
  x = (x + kOneAndAHalf23) - kOneAndAHalf23;
}

template <typename T>
[[gnu::always_inline]] inline void clamp_all(T& x, const T& low, const T& high) {
  x = x > low ? x : low;
  x = x < high ? x : high;
}

inline float rounded_within(float x, float low, float high) {
  clamp_all(x, low, high);
  round_all(x);
  return x;
}

}  // namespace minfer
