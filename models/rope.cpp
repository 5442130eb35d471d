#include "models/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace minfer {
namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;

// Pairs with few turns within the original context are stretched by the factor, those with many are
// kept, those between are blended linearly. Source: Llama 3.1's reference code.
double llama3_frequency(const RopeSpec& rope, double frequency) {
  const double turns = static_cast<double>(rope.original_seq_len) * frequency / kTwoPi;
  const double kept = std::clamp(
      (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0.0, 1.0);
  return frequency * (kept + (1 - kept) / rope.factor);
}

// A larger theta for longer texts, so that the slowest pair turns as far as it did in the original
// context. Source: transformers, _compute_dynamic_ntk_parameters.
double dynamic_theta(const RopeSpec& rope, int64_t seq_len) {
  const auto original = static_cast<double>(rope.original_seq_len);
  const double length = std::max(static_cast<double>(seq_len), original);
  const auto r = static_cast<double>(rope.rotary_dim);
  return rope.theta * std::pow(rope.factor * length / original - (rope.factor - 1), r / (r - 2));
}

// Where YaRN's blend of kept and stretched pairs begins and ends. Source: transformers,
// _compute_yarn_parameters; Peng et al. 2023, arXiv:2309.00071.
struct YarnRamp {
  double low, high;

  explicit YarnRamp(const RopeSpec& rope) {
    const auto r = static_cast<double>(rope.rotary_dim);
    const auto pair_with_turns = [&](double turns) {
      const auto length = static_cast<double>(rope.original_seq_len);
      return r * std::log(length / (turns * kTwoPi)) / (2 * std::log(rope.theta));
    };
    low = pair_with_turns(rope.beta_fast);
    high = pair_with_turns(rope.beta_slow);
    if (rope.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, r - 1);
    if (low == high) high += 0.001;
  }

  // 0: the pair is kept, 1: it is stretched.
  double at(size_t pair) const {
    return std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0);
  }
};

const std::vector<double>& divisors_of(const RopeSpec& rope, int64_t seq_len) {
  if (rope.scaling != RopeScaling::LongRope) return rope.divisors;
  return seq_len > rope.original_seq_len ? rope.long_divisors : rope.short_divisors;
}

}  // namespace

std::string_view scaling_name(RopeScaling scaling) {
  switch (scaling) {
    case RopeScaling::None:
      break;
    case RopeScaling::Linear:
      return "linear";
    case RopeScaling::Llama3:
      return "llama3";
    case RopeScaling::Dynamic:
      return "dynamic";
    case RopeScaling::Yarn:
      return "yarn";
    case RopeScaling::LongRope:
      return "longrope";
  }
  return "none";
}

double yarn_table_scale(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

std::vector<double> rope_frequencies(const RopeSpec& rope, int64_t seq_len) {
  const bool is_dynamic = rope.scaling == RopeScaling::Dynamic;
  const double theta = is_dynamic ? dynamic_theta(rope, seq_len) : rope.theta;
  const YarnRamp ramp(rope);
  const std::vector<double>& divisors = divisors_of(rope, seq_len);
  std::vector<double> frequencies(static_cast<size_t>(rope.rotary_dim / 2));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(rope.rotary_dim);
    double frequency = std::pow(theta, exponent);
    if (rope.scaling == RopeScaling::Linear) frequency /= rope.factor;
    if (rope.scaling == RopeScaling::Llama3) frequency = llama3_frequency(rope, frequency);
    if (rope.scaling == RopeScaling::Yarn) {
      frequency *= 1 - ramp.at(i) + ramp.at(i) / rope.factor;
    }
    if (!divisors.empty()) frequency /= divisors[i];
    frequencies[i] = frequency;
  }
  return frequencies;
}

}  // namespace minfer
