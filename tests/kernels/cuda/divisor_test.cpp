#include "kernels/cuda/divisor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

namespace minfer::cuda {
namespace {

constexpr int kLargest = std::numeric_limits<int>::max();

void expect_quotients(int n, int multiple) {
  const Divisor by(n);
  for (int64_t x = int64_t{multiple} * n - 1; x <= int64_t{multiple} * n + 1; ++x) {
    if (x < 0 || x > kLargest) continue;
    ASSERT_EQ(by.quotient(int(x)), x / n) << x << " / " << n;
  }
}

// The quotients change at the multiples.
TEST(Divisor, DividesAsTheLanguageDoes) {
  std::mt19937 random(1);
  for (int n = 1; n <= 3000; ++n) {
    const int most = kLargest / n;
    for (const int multiple : {0, 1, 2, most / 2, most - 1, most}) expect_quotients(n, multiple);
    for (int i = 0; i < 50; ++i) expect_quotients(n, int(random() >> 1) % most);
    if (HasFatalFailure()) return;
  }
  for (int i = 0; i < 300'000; ++i) {
    const int n = std::max(1, int(random() >> 1) >> (random() % 31));
    expect_quotients(n, int(random() >> 1) % (kLargest / n) + 1);
    if (HasFatalFailure()) return;
  }
  for (const int n : {kLargest - 1, kLargest}) {
    for (const int multiple : {0, 1}) expect_quotients(n, multiple);
  }
}

}  // namespace
}  // namespace minfer::cuda
