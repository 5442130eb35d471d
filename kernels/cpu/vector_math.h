#pragma once

// Functions of sixteen lanes, over simd_avx2.h or simd_avx512.h, whichever was included before.
// Polynomials are weighted minimax fits of this project, stated with their own error (u = 2^-24).

namespace minfer::cpu {
namespace {

// Adds the halves, again and again; the order is part of the result.
inline float sum_lanes(F32x16 a) {
  const __m256 by8 = _mm256_add_ps(lower_half(a), upper_half(a));
  const __m128 by4 = _mm_add_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_add_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_add_ss(by2, _mm_movehdup_ps(by2)));
}

inline float max_lane(F32x16 a) {
  const __m256 by8 = _mm256_max_ps(lower_half(a), upper_half(a));
  const __m128 by4 = _mm_max_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_max_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_max_ss(by2, _mm_movehdup_ps(by2)));
}

inline float first_lane(F32x16 a) { return _mm256_cvtss_f32(lower_half(a)); }

inline float sqrt(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

// c0 + c1 x + c2 x^2 + ...
template <typename... Rest>
inline F32x16 polynomial(F32x16 x, float c0, Rest... rest) {
  if constexpr (sizeof...(rest) == 0) {
    return splat(c0);
  } else {
    return fma(polynomial(x, rest...), x, splat(c0));
  }
}

// e^x = 2^n e^r with n = round(x / ln 2) and |r| <= ln(2) / 2, where e^r = 1 + r + r^2 P(r). P is
// good to 0.06 u; with roundings the error is 2 units in the last place. ln 2 is subtracted in two
// parts, the first of few bits, so that n times it is exact (Cody and Waite 1980). Results below
// the smallest normal number are 0.
inline F32x16 exp(F32x16 x) {
  const F32x16 kept = max(splat(-104.0f), min(splat(89.0f), x));
  const F32x16 n = round(kept * splat(1.44269504f));
  const F32x16 r = fma(n, splat(2.12194440e-4f), fma(n, splat(-0.693359375f), kept));
  const F32x16 p =
      polynomial(r, 0.49999994f, 0.16666521f, 0.04166839f, 0.008368717f, 0.0013814599f);
  const F32x16 power = fma(r * r, p, r) + splat(1.0f);
  const F32x16 smallest = splat(-87.3365448f);  // ln of the smallest normal number
  return where_less(x, smallest, splat(0.0f), times_power_of_2(power, max(n, splat(-126.0f))));
}

// |x| <= 1: x + x P(x^2). Beyond: 1 - e^Q(|x|), where Q is the logarithm of erfc on [1, 4]; past 4,
// erfc is below u. Both fits are good to 0.02 u, the whole to 2 u absolutely.
inline F32x16 erf(F32x16 x) {
  const F32x16 t = min(splat(4.0f), abs(x));
  const F32x16 near = fma(polynomial(x * x, 0.12837915f, -0.37612605f, 0.112834305f, -0.026848592f,
                                     0.00517975f, -0.00079423573f, 7.647121e-05f),
                          x, x);
  const F32x16 far =
      splat(1.0f) - exp(polynomial(t, -0.000332692f, -1.1271225f, -0.6380936f, -0.103147954f,
                                   0.021856304f, -0.0029518749f, 0.00018677679f));
  return where_less(t, splat(1.0f), near, with_sign_of(far, x));
}

// (1 - t) / (1 + t) with t = e^-2|x|, good to 3 u absolutely.
inline F32x16 tanh(F32x16 x) {
  const F32x16 t = exp(splat(-2.0f) * abs(x));
  return with_sign_of((splat(1.0f) - t) / (splat(1.0f) + t), x);
}

// c tanh(x / c)
inline F32x16 capped(F32x16 x, float c) { return splat(c) * tanh(x / splat(c)); }

inline F32x16 sigmoid_times(F32x16 gate_times_minus_1, F32x16 x) {
  return x / (splat(1.0f) + exp(gate_times_minus_1));
}

// The functions of kernels.h's Activation. tanh(u) = 2 / (1 + e^-2u) - 1 turns GELU-tanh into
// x / (1 + e^-2u).
template <Activation kActivation>
inline F32x16 activated(F32x16 x) {
  if constexpr (kActivation == Activation::None) {
    return x;
  } else if constexpr (kActivation == Activation::GeluErf) {
    return splat(0.5f) * x * (splat(1.0f) + erf(x * splat(0.707106781f)));
  } else if constexpr (kActivation == Activation::GeluTanh) {
    // -2 sqrt(2 / pi) (x + 0.044715 x^3)
    const F32x16 cubic = fma(x * x, splat(-0.0713548162f), splat(-1.59576912f));
    return sigmoid_times(x * cubic, x);
  } else {
    static_assert(kActivation == Activation::Silu);
    return sigmoid_times(splat(0.0f) - x, x);
  }
}

// Calls f.operator()<activation>().
template <typename F>
inline void with_activation(Activation activation, F&& f) {
  switch (activation) {
    case Activation::None:
      return f.template operator()<Activation::None>();
    case Activation::GeluErf:
      return f.template operator()<Activation::GeluErf>();
    case Activation::GeluTanh:
      return f.template operator()<Activation::GeluTanh>();
    case Activation::Silu:
      return f.template operator()<Activation::Silu>();
  }
}

}  // namespace
}  // namespace minfer::cpu
