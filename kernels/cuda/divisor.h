#pragma once

#include <cuda_runtime.h>

#include <bit>
#include <cstdint>

namespace minfer::cuda {

// Division by a number that the host knows, in three instructions; else it takes a kernel some
// twenty that wait for each other. Source: Granlund and Montgomery 1994, "Division by Invariant
// Integers using Multiplication", with a factor of 2^(31 + shift) / n, rounded up.
class Divisor {
 public:
  Divisor() = default;
  explicit Divisor(int n)  // n > 0
      : shift_(std::bit_width(uint32_t(n) - 1)),
        factor_(uint32_t(((uint64_t{1} << (31 + shift_)) + uint32_t(n) - 1) / uint32_t(n))) {}

  // x / n, x >= 0.
  __host__ __device__ int quotient(int x) const {
    return int(uint32_t(uint64_t{2 * uint32_t(x)} * factor_ >> 32) >> shift_);
  }

 private:
  int shift_;
  uint32_t factor_;
};

}  // namespace minfer::cuda
