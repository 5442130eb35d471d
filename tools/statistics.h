#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace minfer {

// The smallest sample that at least `share` of all samples do not exceed; 0 without samples.
inline double percentile(std::vector<double> samples, double share) {
  if (samples.empty()) return 0;
  std::ranges::sort(samples);
  const auto rank = static_cast<size_t>(std::ceil(share * double(samples.size())));
  return samples[std::clamp<size_t>(rank, 1, samples.size()) - 1];
}

inline double mean(const std::vector<double>& samples) {
  double sum = 0;
  for (double s : samples) sum += s;
  return samples.empty() ? 0 : sum / double(samples.size());
}

// Of a sample (n - 1); 0 for fewer than two.
inline double standard_deviation(const std::vector<double>& samples) {
  if (samples.size() < 2) return 0;
  const double m = mean(samples);
  double sum = 0;
  for (double s : samples) sum += (s - m) * (s - m);
  return std::sqrt(sum / double(samples.size() - 1));
}

// A rate that is 0 where no time has passed.
inline double per_second(double amount, double seconds) {
  return seconds > 0 ? amount / seconds : 0;
}

}  // namespace minfer
