#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/error.h"

// Limits of a template, which comes with a model and is not trusted.
namespace minfer::jinja {

constexpr int kMaxNesting = 256;              // of values, expressions, tags and calls of macros
constexpr int64_t kMaxSteps = 10'000'000;     // of evaluation
constexpr size_t kMaxOutputBytes = 16 << 20;  // of the rendered text
constexpr size_t kMaxValueBytes = 16 << 20;   // of the values that are alive at one time
constexpr int64_t kMaxIntegerBits = 63;       // Python's integers have no bound, these do

// Counts steps and the bytes of living values. It must outlive every value that it has counted.
class Meter {
 public:
  // A step stands for work of up to about 100 ns.
  void step(int64_t n = 1) {
    steps_ += n;
    MINFER_REQUIRE(Input, steps_ <= kMaxSteps, "the template takes more than ", kMaxSteps,
                   " steps");
  }
  // Counts the work of one pass over a text.
  void scan(size_t n_bytes) { step(static_cast<int64_t>(n_bytes / 32)); }
  void require_room(size_t n_bytes) const {
    MINFER_REQUIRE(Input, n_bytes <= kMaxValueBytes && bytes_ + n_bytes <= kMaxValueBytes + input_,
                   "the template makes values of more than ", kMaxValueBytes >> 20, " MB");
  }
  void take(size_t n_bytes) {
    require_room(n_bytes);
    bytes_ += n_bytes;
  }
  void give_back(size_t n_bytes) { bytes_ -= n_bytes; }
  // The values that are alive now are the caller's own input and do not count.
  void exempt_input() { input_ = bytes_; }

 private:
  int64_t steps_ = 0;
  size_t bytes_ = 0, input_ = 0;
};

// Makes `depth` one level deeper for the life of this object.
class Deeper {
 public:
  Deeper(int& depth, int limit) : depth_(depth) {
    MINFER_REQUIRE(Input, depth < limit, "the template nests deeper than ", limit, " levels");
    ++depth_;
  }
  ~Deeper() { --depth_; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;

 private:
  int& depth_;
};

}  // namespace minfer::jinja
