#pragma once

#include <algorithm>
#include <cstdint>

namespace minfer {

// What a pass of several rows costs, in passes of one row: as much at once, and as much for each
// row behind the first. Other kernels take several rows than one, so `at_once` may be well above 1.
struct PassCost {
  double at_once = 1, row = 0.5;

  double of(int64_t n_more) const { return n_more == 0 ? 1 : at_once + double(n_more) * row; }
};

// A line through measured costs; old ones fade, so that what else the machine does for a while is
// soon forgotten. Before any is measured, it is that of a guess.
class PassCostFit {
 public:
  // most: rows behind the first, 2 or more.
  PassCostFit(const PassCost& guess, int64_t most) {
    for (const int64_t n_more : {int64_t{1}, most}) add(n_more, guess.of(n_more));
  }

  // A pass of n_more rows behind the first took as long as `cost` passes of one row.
  void add(int64_t n_more, double cost) {
    const double n = double(n_more);
    for (double* sum : {&all_, &n_, &nn_, &cost_, &n_cost_}) *sum *= kFade;
    all_ += 1;
    n_ += n;
    nn_ += n * n;
    cost_ += cost;
    n_cost_ += n * cost;
  }

  PassCost fitted() const {
    const double mean_n = n_ / all_, mean_cost = cost_ / all_;
    const double variance = nn_ / all_ - mean_n * mean_n;
    // Passes of one length say nothing about the slope: then all of it is for the rows.
    double row = mean_cost > 1 ? (mean_cost - 1) / mean_n : 0;
    if (variance > 0.1) {
      row = std::max(0.0, (n_cost_ / all_ - mean_n * mean_cost) / variance);
    }
    return {mean_cost - row * mean_n, row};
  }

 private:
  static constexpr double kFade = 0.95;

  double all_ = 0, n_ = 0, nn_ = 0, cost_ = 0, n_cost_ = 0;  // fading sums
};

}  // namespace minfer
