#pragma once

#include <concepts>
#include <cstdint>
#include <utility>

#include "kernels/base/error.h"

namespace minfer {

// Sizes read from files go through these: each step is checked, never the product afterwards.
template <std::integral T>
T checked_mul(T a, T b) {
  T product;
  MINFER_REQUIRE(Input, !__builtin_mul_overflow(a, b, &product), a, " x ", b, " overflows");
  return product;
}

template <std::integral T>
T checked_add(T a, T b) {
  T sum;
  MINFER_REQUIRE(Input, !__builtin_add_overflow(a, b, &sum), a, " + ", b, " overflows");
  return sum;
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

constexpr int64_t align_up(int64_t a, int64_t alignment) {
  return ceil_div(a, alignment) * alignment;
}

// The same value in another integer type; a value that does not fit is a bug of the caller.
template <std::integral To, std::integral From>
To narrow(From value) {
  MINFER_CHECK(std::in_range<To>(value), "narrow: ", value, " does not fit");
  return static_cast<To>(value);
}

}  // namespace minfer
