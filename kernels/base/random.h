#pragma once

#include <cstdint>

namespace minfer {

// A bijection of 64 bits that looks random: random numbers by counter, mix64(seed + i).
// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
constexpr uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Uniform in [0, 1), in steps of 2^-53: draw `step` of a seed.
constexpr double uniform_draw(uint64_t seed, uint64_t step) {
  return static_cast<double>(mix64(mix64(seed) + step) >> 11) * 0x1p-53;
}

}  // namespace minfer
