#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "engine/scoring_windows.h"
#include "engine/session.h"

namespace minfer {

// Takes values one by one and gives their mean and its standard error. Sums are in double, in the
// order of the values.
class MeanEstimate {
 public:
  void add(double value) {
    ++n_;
    sum_ += value;
    sum_sq_ += value * value;
  }
  int64_t n() const { return n_; }
  double sum() const { return sum_; }
  double mean() const { return n_ > 0 ? sum_ / double(n_) : 0; }
  // sqrt((mean of squares - square of mean) / (n - 1)); 0 for fewer than two values.
  double standard_error() const {
    if (n_ < 2) return 0;
    const double variance = sum_sq_ / double(n_) - mean() * mean();
    return std::sqrt(std::max(0.0, variance) / double(n_ - 1));
  }

 private:
  int64_t n_ = 0;
  double sum_ = 0, sum_sq_ = 0;
};

// How a model differs from a reference on the same predictions.
struct ModelDifference {
  MeanEstimate reference_nll;
  MeanEstimate nll_difference;  // of each prediction: the model's NLL minus the reference's
  MeanEstimate kl_divergence;   // of each prediction: KL(reference || model), in nats
  int64_t n_same_top = 0;       // predictions with the same most probable token
};

struct Perplexity {
  MeanEstimate nll;  // negative log-likelihood of each scored token, in nats
  std::optional<ModelDifference> difference;
  int64_t n_evaluated = 0;  // tokens that went through the model

  double value() const { return std::exp(nll.mean()); }
  double standard_error() const { return value() * nll.standard_error(); }
};

struct PerplexityOptions {
  int n_threads = 1;  // for the log-likelihoods; the result does not depend on it
  // Called after each pass with the number of windows done, that of all windows, and the perplexity
  // of the first session so far; may be null.
  std::function<void(int64_t, int64_t, double)> progress = {};
};

// Evaluates the windows, each from an empty cache, in each session and once in the reference, which
// may be null. Returns one result for each session. Consecutive windows share a pass if they fit in
// the prefill chunk and the cache of every session; on the CPU this changes no bit. Throws Numeric
// at the first number that is not finite, with window, position and layer, and if the result is not
// finite.
std::vector<Perplexity> evaluate_perplexity(std::span<const ScoringWindow> windows,
                                            std::span<Session* const> sessions, Session* reference,
                                            const PerplexityOptions& options);

}  // namespace minfer
